"""Measure how well a linear map reads the answer from the residual stream (Fig. 3).

Probes read at each layer and position. Their prompts are those that the model answers correctly, or
a sample of them. Each prompt keeps its own answer: the published code shuffles the answers at all
positions but one, which is a control here. The probe is a linear discriminant analysis
(stages/circuit/discriminant.py). An operator with too few correct answers has no probe. One forward
pass of each prompt serves all layers (stages/lib/model/residuals.py).

Table probes: accuracy with which a linear probe of the residual stream predicts the answer
    subject            VARCHAR   the model
    operator           VARCHAR   add, subtract, multiply or divide
    layer              SMALLINT  decoder layer, from 0; the probe reads the residual stream after it
    position           VARCHAR   role of the token at which it is read: op1, operator, op2 or last
    accuracy           DOUBLE    share of the test prompts whose answer the probe predicts, 0 to 1;
                                 null if there are too few prompts
    shuffled_accuracy  DOUBLE    accuracy of a probe trained and tested on answers shuffled among
                                 the prompts, a control, 0 to 1
    majority_accuracy  DOUBLE    accuracy on the test prompts of always predicting the most frequent
                                 answer of the training prompts, a control, 0 to 1
    answers            INTEGER   number of different answers among the training prompts, which the
                                 probe can predict
    prompts            BIGINT    number of test prompts
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
from stages.lib.core.vocabulary import ROLES
from stages.lib.model import checkpoint, residuals
from stages.lib.settings import Passes
from stages.lib.subject import Subject

COLUMNS = {
    "subject": pl.String,
    "operator": pl.String,
    "layer": pl.Int16,
    "position": pl.String,
    "accuracy": pl.Float64,
    "shuffled_accuracy": pl.Float64,
    "majority_accuracy": pl.Float64,
    "answers": pl.Int32,
    "prompts": pl.Int64,
}


class KnowsNothing(SystemExit):
    """A model without any correct answer; uncaught, it ends the program with status 1."""


@dataclass(frozen=True)
class Sample:
    """Hold prompts of an operator in random order, the first `tests` of which are for testing.

    tokens: tokens of each prompt; positions: (prompts, ROLES); answers: (prompts,); shuffled:
    (prompts,) the answers in a random order.
    """

    operator: str
    tokens: list[list[int]]
    positions: np.ndarray
    answers: np.ndarray
    shuffled: np.ndarray
    tests: int

    @classmethod
    def draw(cls, operator: str, prompts: pl.DataFrame, settings: Probes) -> "Sample":
        """Draw a sample of `prompts`, the operator's correctly answered prompts."""
        generator = np.random.default_rng(settings.seed)
        drawn = prompts.sort("op1", "op2")[generator.permutation(len(prompts))[: settings.prompts]]
        answers = np.array(drawn["answer_token"].to_list(), np.int64)
        positions = drawn.select(f"{role}_position" for role in ROLES).to_numpy()
        tests = len(drawn) * settings.test_percent // 100
        shuffled = generator.permutation(answers)
        return cls(operator, drawn["tokens"].to_list(), positions, answers, shuffled, tests)

    @property
    def different_answers(self) -> int:
        return len(np.unique(self.answers[self.tests :]))

    @property
    def majority(self) -> float:
        values, counts = np.unique(self.answers[self.tests :], return_counts=True)
        return float((self.answers[: self.tests] == values[counts.argmax()]).mean())


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Probes)
    passes = subject.settings.passes or load(Passes)
    samples = _samples(subject, settings)
    loaded = checkpoint.from_settings(subject.settings)
    layers, device = range(len(loaded.architecture.layers)), str(loaded.model.device)
    probed = [len(sample.answers) for sample in samples]
    probed = [prompts for prompts in probed if prompts >= settings.fewest_prompts]
    # each prompt passes each layer, and is then probed there
    total = 2 * sum(probed) * len(layers)
    rows: list[tuple] = []
    with progress.bar(total=total, desc=f"probes {name}", unit="prompt-layer") as bar:
        bar.update(0, name)  # starts the clock before the first prompts have passed
        for sample in samples:
            keys, counts = (name, sample.operator), (sample.different_answers, sample.tests)
            sites = list(product(layers, ROLES))
            if len(sample.answers) < settings.fewest_prompts:
                rows += [(*keys, *site, None, None, None, *counts) for site in sites]
                continue
            title = f"streams {name} {sample.operator}"
            inputs = loaded, sample.tokens, sample.positions, passes.prompts
            with residuals.read(*inputs, subject.path("circuit"), title) as streams:
                bar.update(len(sample.answers) * len(layers), name)
                for layer, role in sites:
                    features = streams.at(layer + 1, ROLES.index(role)).astype(np.float32)
                    accuracies = probe(features, sample, settings.shrinkage, device)
                    rows.append((*keys, layer, role, *accuracies, sample.majority, *counts))
                    if role == ROLES[-1]:
                        bar.update(len(sample.answers), name)
    frame = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    order = pl.col("position").replace_strict(ROLES, range(len(ROLES)))
    write_table(frame.sort("operator", "layer", order), subject.path("circuit/probes.parquet"))


def _samples(subject: Subject, settings: Probes) -> list[Sample]:
    """Return a sample of the prompts of each operator that the model answers correctly.

    Raises KnowsNothing if there is no such prompt.
    """
    keys = ["operator", "op1", "op2"]
    correct = subject.table("store/predictions.parquet").filter("correct").select(keys)
    if correct.is_empty():
        query = f"bag \"select * from predictions where subject = '{subject.name}'\""
        raise KnowsNothing(
            f"{subject.name} answers no prompt of the grid correctly, so there is nothing to "
            f"explain: check whether its template suits it ({query}), or move it to `stored` "
            "in params.yaml"
        )
    prompts = subject.table("store/prompts.parquet").join(correct, on=keys)
    operators = subject.settings.operators
    return [Sample.draw(each, prompts.filter(operator=each), settings) for each in operators]


def probe(features: np.ndarray, sample: Sample, shrinkage: float, device: str) -> list[float]:
    """Return the accuracy of probes of the answers and of shuffled answers.

    features: (prompts, width).
    """
    labels = [sample.answers, sample.shuffled]
    return discriminant.probe(features, labels, sample.tests, shrinkage, device)


if __name__ == "__main__":
    main(sys.argv[1])
