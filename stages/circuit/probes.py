"""Asks how well a linear map reads the answer from the residual stream, by layer and position (the study's Fig. 3).

The prompts are those answered correctly, or a sample of them; each keeps its own answer (the published code shuffles the answers at all
positions but one: our control beside the probe). The probe is a linear discriminant analysis, see stages/circuit/discriminant.py; an
operator with too few correct answers has none. One forward pass of each prompt serves all layers (stages/lib/model/residuals.py).

Table probes: how often a linear probe of the residual stream names the answer
    subject            VARCHAR   the model
    operator           VARCHAR   add, subtract, multiply or divide
    layer              SMALLINT  decoder layer, from 0; the probe reads the stream that leaves it
    position           VARCHAR   role of the token at which it is read: op1, operator, op2 or last
    accuracy           DOUBLE    share of the test prompts whose answer the probe names, 0 to 1; null where there are too few
    shuffled_accuracy  DOUBLE    the same with the answers shuffled among the prompts before the probe is made, a control
    majority_accuracy  DOUBLE    share of the test prompts whose answer is the most frequent one of the training prompts, a control
    answers            INTEGER   different answers among the training prompts, those the probe can name
    prompts            BIGINT    test prompts
"""

import sys
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from stages.circuit import discriminant
from stages.circuit.settings import Probes
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.words import ROLES
from stages.lib.model import checkpoint, residuals
from stages.lib.settings import Passes
from stages.lib.subject import Subject

COLUMNS = {
    "subject": pl.String, "operator": pl.String, "layer": pl.Int16, "position": pl.String, "accuracy": pl.Float64,
    "shuffled_accuracy": pl.Float64, "majority_accuracy": pl.Float64, "answers": pl.Int32, "prompts": pl.Int64,
}  # fmt: skip


class KnowsNothing(SystemExit):
    """A subject without any right answer; uncaught, it ends the program with its message and status 1."""


@dataclass(frozen=True)
class Sample:
    """Prompts of an operator in random order, the first `tests` of which are for testing.

    tokens: of each prompt; positions: (prompts, ROLES); answers, shuffled: (prompts,), the latter
    without relation to the prompts.
    """

    operator: str
    tokens: list[list[int]]
    positions: np.ndarray
    answers: np.ndarray
    shuffled: np.ndarray
    tests: int

    @classmethod
    def draw(cls, operator: str, prompts: pl.DataFrame, settings: Probes) -> "Sample":
        """A sample of `prompts`, the operator's correctly answered ones."""
        generator = np.random.default_rng(settings.seed)
        drawn = prompts.sort("op1", "op2")[generator.permutation(len(prompts))[: settings.prompts]]
        answers = np.array(drawn["answer_token"].to_list(), np.int64)
        positions = drawn.select(f"{role}_position" for role in ROLES).to_numpy()
        tests = len(drawn) * settings.test_percent // 100
        shuffled = generator.permutation(answers)
        return cls(operator, drawn["tokens"].to_list(), positions, answers, shuffled, tests)

    @property
    def majority(self) -> float:
        values, counts = np.unique(self.answers[self.tests :], return_counts=True)
        return float((self.answers[: self.tests] == values[counts.argmax()]).mean())


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Probes)
    passes = subject.settings.passes or load(Passes)
    predictions = subject.table("store/predictions.parquet").filter("correct").select("operator", "op1", "op2")
    if predictions.is_empty():
        raise KnowsNothing(
            f"{name} answers no prompt of the grid correctly, so that there is nothing to explain: see whether its template suits it "
            f"(bag \"select * from predictions where subject = '{name}'\"), or put it under `stored` in params.yaml"
        )
    prompts = subject.table("store/prompts.parquet").join(predictions, on=["operator", "op1", "op2"])
    samples = [Sample.draw(o, prompts.filter(pl.col("operator") == o), settings) for o in subject.settings.operators]
    loaded = checkpoint.of(subject.settings)
    layers, device = range(len(loaded.architecture.layers)), str(loaded.model.device)
    rows: list[tuple] = []
    with progress.bar(total=sum(len(s.answers) for s in samples) * len(layers), desc=f"probes {name}", unit="prompt-layer") as bar:
        for sample in samples:
            answers, key = len(np.unique(sample.answers[sample.tests :])), (name, sample.operator)
            if len(sample.answers) < settings.fewest_prompts:
                rows += [(*key, layer, role, None, None, None, answers, sample.tests) for layer in layers for role in ROLES]
                continue
            title, folder = f"streams {name} {sample.operator}", subject.path("circuit")
            with residuals.read(loaded, sample.tokens, sample.positions, passes.prompts, folder, title) as streams:
                for layer, role in product(layers, ROLES):
                    features = streams.at(layer + 1, ROLES.index(role)).astype(np.float32)
                    real, shuffled = probe(features, sample, settings.shrinkage, device)
                    rows.append((*key, layer, role, real, shuffled, sample.majority, answers, sample.tests))
                    if role == ROLES[-1]:
                        bar.update(len(sample.answers))
    frame = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    order = pl.col("position").replace_strict(ROLES, range(len(ROLES)))
    write_table(frame.sort("operator", "layer", order), subject.path("circuit/probes.parquet"))


def probe(features: np.ndarray, sample: Sample, shrinkage: float, device: str) -> list[float]:
    """Return the accuracy of a probe of these features (prompts, width), and on shuffled answers."""
    labels = [sample.answers, sample.shuffled]
    return discriminant.probe(features, labels, sample.tests, shrinkage, device)


if __name__ == "__main__":
    main(sys.argv[1])
