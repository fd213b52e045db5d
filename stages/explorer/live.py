"""A subject's model at work on single prompts, carried out by the executor of the pipeline; it loads torch, so it is imported late."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stages.explorer.project import ExplorerError, Project
from stages.lib.core import slots
from stages.lib.core.layered import read_array, read_attributes
from stages.lib.core.settings import load
from stages.lib.executor import interventions
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.executor.runs import pooled
from stages.lib.model import checkpoint
from stages.lib.model.value_logits import centres, gain
from stages.lib.settings import Runs

Neurons = Sequence[tuple[int, int]]  # layer and neuron
PROMPTS = """
    select row_number() over (order by op1, op2)::integer - 1 as pair, operator, op1, op2, result, tokens, answer_token,
        columns('.*_position')
    from prompts where subject = $subject and operator = $operator and result is not null
"""
SINGLE = f"select 0::integer as pair, * exclude (pair) from ({PROMPTS}) where op1 = $op1 and op2 = $op2"
CLEAN, CHOSEN, RANDOM = 0, 1, 2  # numbers of the interventions of a whole grid
ROLES = ("op1", "operator", "op2", "last")


@dataclass(frozen=True, eq=False)
class Spoken:
    """What a model says to a prompt: logits (vocabulary,); neurons: of each layer the activations at the last position; scale: by how
    much the final norm multiplies what is written into the stream there."""

    logits: np.ndarray
    neurons: list[np.ndarray]
    scale: float


class Live:
    """A subject's model, loaded and checked. Raises ExplorerError where it cannot be."""

    def __init__(self, project: Project, name: str):
        self.project, self.name = project, name
        subject = project.subject(name)
        try:
            settings = load(Runs)
            loaded = checkpoint.of(subject.settings, threads=1)
            self._means = subject.path("store/means.h5")
            kinds = ("neurons", "heads", "residual") if self._means.exists() else ()
            pooled_means = {kind: pooled(read_array(self._means, kind)) for kind in kinds}
            means = {"mean": pooled_means} if kinds else {}
            widths = slots.widths(read_attributes(self._means)) if kinds else None
            self.executor = Executor(loaded, means, settings.rows_per_pass, settings.memory_mib << 20, widths=widths)
        except (RuntimeError, ValueError, OSError, SystemExit) as error:
            raise ExplorerError(f"the model of {name} cannot be run: {error}") from None
        self._kept: tuple[tuple, PromptPairs] | None = None

    def cell(self, operator: str, op1: int, op2: int) -> pl.DataFrame:
        """The prompt of a cell, as a table of one row. Raises ExplorerError where the subject has none with an answer."""
        self.project.need(self.name, "prompts")
        row = self._prompts(SINGLE, operator=operator, op1=op1, op2=op2)
        if not row.height:
            sign = self.project.symbols[operator]
            raise ExplorerError(f"{op1}{sign}{op2} is no cell of {self.name}: its answer is no number of one token, or it was never asked.")
        return row

    def speak(self, operator: str, op1: int, op2: int) -> Spoken:
        """What the model says to the prompt of a cell when left alone."""
        pairs = self._pairs(self.cell(operator, op1, op2))
        run, a = self.executor.values(pairs).clean, self.executor.checkpoint.architecture
        stream = run.streams[-1][:, -1:]
        bias = a.final_norm(stream * 0)
        out = (a.final_norm(stream) - bias).double().flatten().cpu().numpy()
        inside = stream.double().flatten().cpu().numpy()
        weight = a.unembedding.weight
        raw = (inside - inside.mean() if centres(a.final_norm, weight) else inside) * gain(a.final_norm, weight).cpu().numpy()
        neurons = [layer[0, -1].double().cpu().numpy() for layer in run.neurons]
        return Spoken(run.logits[0].double().cpu().numpy(), neurons, float(out @ raw / (raw @ raw)))

    def silenced(self, prompt: pl.DataFrame, sets: Sequence[Neurons], replacement: str, other: pl.DataFrame | None) -> list[np.ndarray]:
        """Logits (vocabulary,) of a prompt with each of these sets of neurons replaced at the last position.

        replacement: zero, mean, or counterfactual: the value in the prompt `other`.
        """
        pairs = self._pairs(prompt, other)
        wanted = self._interventions(dict(enumerate(sets)), replacement)
        values = self.executor.values(pairs)
        return [self.executor.logits(values, one)[0].double().cpu().numpy() for one in wanted]

    def grid(self, operator: str, chosen: Neurons, drawn: Neurons, replacement: str, other: pl.DataFrame | None) -> Iterator[tuple]:
        """The same over every cell, part by part: (cells so far, of all), and the part's op1, op2, and what is said, as tokens, left alone,
        with the chosen neurons replaced, and with random ones: (3, prompts), beside the answers' tokens."""
        cells = self._prompts(f"{PROMPTS} order by op1, op2", operator=operator)
        table = self._table(cells, other)
        wanted = [interventions.Intervention(CLEAN, None, None, ()), *self._interventions({CHOSEN: chosen, RANDOM: drawn}, replacement)]
        op1, op2, done = cells["op1"].to_numpy(), cells["op2"].to_numpy(), 0
        for pairs in self.executor.sizes.groups(table):
            said = np.zeros((3, len(pairs)), np.int64)
            for batch, measured in self.executor.run(Block(pairs, tuple(wanted))):
                said[[one.number for one in batch]] = measured.predicted
            done += len(pairs)
            yield (done, len(cells)), op1[pairs.number], op2[pairs.number], said, pairs.answers

    def random(self, like: Neurons, seed: int) -> list[tuple[int, int]]:
        """As many random neurons of each layer, none of them among those given, as far as there are so many."""
        found = []
        for layer in sorted({layer for layer, _ in like}):
            taken = {neuron for of, neuron in like if of == layer}
            others = np.setdiff1d(np.arange(self.executor.checkpoint.architecture.neurons), list(taken))
            drawn = np.random.default_rng([seed, layer]).permutation(others)[: len(taken)]
            found += [(layer, int(neuron)) for neuron in np.sort(drawn)]
        return found

    def _interventions(self, sets: dict[int, Neurons], replacement: str) -> list[interventions.Intervention]:
        """Neurons replaced, as rows, checked like those of any experiment."""
        if replacement == "mean" and not self.executor.means:
            way_out = "replace by zero, or `make pull` it."
            raise ExplorerError(f"there is no {self._means}, which has the means; {way_out}")
        rows = [
            {"intervention": number, "layer": layer, "units": [neuron for of, neuron in chosen if of == layer]}
            for number, chosen in sets.items()
            for layer in sorted({layer for layer, _ in chosen})
        ]
        if len({row["intervention"] for row in rows}) < len(sets):
            raise ExplorerError("no neuron is chosen; tick a heuristic or a neuron, or write some as layer:neuron.")
        schema: dict[str, Any] = {"intervention": pl.Int32, "layer": pl.Int16, "units": pl.List(pl.Int32)}
        same = {"component": "neuron", "position": "last", "replacement": replacement}
        none = [pl.lit(None, pl.String).alias(name) for name in ("operator", "split", "key_position")]
        table = pl.DataFrame(rows, schema).with_columns(*none, **{name: pl.lit(value) for name, value in same.items()})
        try:
            return interventions.read(table, self.executor.checkpoint.architecture, ROLES)
        except interventions.InterventionError as error:
            raise ExplorerError(str(error).partition(": ")[2]) from None

    def _prompts(self, query: str, **given: Any) -> pl.DataFrame:
        """Rows of PROMPTS, their positions as one column, as of tables of pairs; operands of one token have no first one."""
        rows = self.project.ask(query, subject=self.name, **given)
        known = [name for name in rows.columns if name.endswith("_position") and not rows[name].null_count()]
        return rows.with_columns(positions=pl.struct(pl.col(name).alias(name.removesuffix("_position")) for name in known))

    def _pairs(self, prompt: pl.DataFrame, other: pl.DataFrame | None = None) -> PromptPairs:
        """One prompt beside another, or beside itself; the last ones are kept, and with them what the executor keeps of them."""
        key = tuple((of["operator"][0], of["op1"][0], of["op2"][0]) for of in (prompt, prompt if other is None else other))
        if not self._kept or self._kept[0] != key:
            [pairs] = by_length(self._table(prompt, other), 1)
            self._kept = key, pairs
        return self._kept[1]

    def _table(self, prompts: pl.DataFrame, other: pl.DataFrame | None) -> pl.DataFrame:
        """A table of pairs: each prompt beside another one, or beside itself."""
        for name in ("tokens", "answer_token", "positions"):
            value = pl.col(name) if other is None else pl.lit(other[name].first(), other.schema[name])
            prompts = prompts.with_columns(value.alias(f"counterfactual_{name}"))
        return prompts
