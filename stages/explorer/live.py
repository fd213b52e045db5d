"""Run a model on prompts, with neurons ablated or not, by the executor of the pipeline.

This module loads torch, so it is imported late.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stages.explorer.project import ExplorerError, Project
from stages.lib.core import slots
from stages.lib.core.hdf5_store import read_array, read_attributes
from stages.lib.core.settings import load
from stages.lib.core.vocabulary import ROLES
from stages.lib.executor import interventions, shortcuts
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.executor.runs import pooled
from stages.lib.model import checkpoint
from stages.lib.model.value_logits import centres, gain
from stages.lib.settings import Runs

Neurons = Sequence[tuple[int, int]]  # layer and neuron
PROMPTS = """
    select row_number() over (order by op1, op2)::integer - 1 as pair,
        operator, op1, op2, result, tokens, answer_token, columns('.*_position')
    from prompts where subject = $subject and operator = $operator and result is not null
"""
SINGLE = f"""
    select 0::integer as pair, * exclude (pair) from ({PROMPTS})
    where op1 = $op1 and op2 = $op2
"""
CLEAN, ABLATED, RANDOM = 0, 1, 2  # numbers of the interventions of a whole grid
KINDS = ("neurons", "heads", "residual")  # of activations that have a mean
INTERVENTIONS: dict[str, Any] = {
    "intervention": pl.Int32,
    "operator": pl.String,
    "split": pl.String,
    "component": pl.String,
    "layer": pl.Int16,
    "units": pl.List(pl.Int32),
    "position": pl.String,
    "key_position": pl.String,
    "replacement": pl.String,
}


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model computes for a prompt.

    logits: (vocabulary,); neurons: the activations of each layer at the last position, (neurons,);
    scale: the factor by which the final norm multiplies the residual stream there.
    """

    logits: np.ndarray
    neurons: list[np.ndarray]
    scale: float


@dataclass(frozen=True, eq=False)
class GridPart:
    """Predictions for some cells of a grid.

    done: cells up to here; cells: of the whole grid; op1, op2, answers: (prompts,), answers as
    tokens; predicted: tokens, (3, prompts), for CLEAN, ABLATED and RANDOM.
    """

    done: int
    cells: int
    op1: np.ndarray
    op2: np.ndarray
    answers: np.ndarray
    predicted: np.ndarray


class Live:
    """A model, loaded and checked. Raises ExplorerError if it cannot be loaded."""

    def __init__(self, project: Project, name: str):
        self.project, self.name = project, name
        subject = project.subject(name)
        self._means = subject.path("store/means.h5")
        try:
            settings = load(Runs)
            loaded = checkpoint.from_settings(subject.settings, threads=1)
            means, widths = {}, None
            if self._means.exists():
                means = {"mean": {kind: pooled(read_array(self._means, kind)) for kind in KINDS}}
                widths = slots.widths(read_attributes(self._means))
            memory = settings.memory_mib << 20
            self.executor = Executor(
                loaded,
                means,
                settings.rows_per_pass,
                memory,
                widths=widths,
                remembered=shortcuts.kept(loaded, subject.settings.source),
            )
        except (RuntimeError, ValueError, OSError, SystemExit) as error:
            raise ExplorerError(f"the model of {name} cannot be run: {error}") from None
        self._kept: tuple[tuple, PromptPairs] | None = None

    def cell(self, operator: str, op1: int, op2: int) -> pl.DataFrame:
        """Return the prompt of a cell, as a table with one row.

        Raises ExplorerError if the model has no such prompt with an answer.
        """
        self.project.need(self.name, "prompts")
        row = self._prompts(SINGLE, operator=operator, op1=op1, op2=op2)
        if not row.height:
            cell = f"{op1}{self.project.symbols[operator]}{op2}"
            reason = "its answer is not a number of one token, or the prompt is not in the grid"
            raise ExplorerError(f"{cell} is not a cell of {self.name}: {reason}.")
        return row

    def predict(self, operator: str, op1: int, op2: int) -> Prediction:
        """Return what the unchanged model computes for the prompt of a cell."""
        run = self.executor.values(self._pairs(self.cell(operator, op1, op2))).clean
        neurons = [_array(layer[0, -1]) for layer in run.neurons]
        scale = self._norm_scale(run.streams[-1][:, -1:])
        return Prediction(_array(run.logits[0]), neurons, scale)

    def _norm_scale(self, stream: Any) -> float:
        """Return the factor by which the final norm multiplies a residual stream (1, 1, width).

        The factor leaves out the norm's own weights and bias.
        """
        architecture = self.executor.checkpoint.architecture
        norm, weight = architecture.final_norm, architecture.unembedding.weight
        normalised, before = _array(norm(stream) - norm(stream * 0)), _array(stream)
        if centres(norm, weight):
            before = before - before.mean()
        weighted = before * gain(norm, weight).cpu().numpy()
        return float(normalised @ weighted / (weighted @ weighted))

    def ablated(
        self,
        prompt: pl.DataFrame,
        sets: Sequence[Neurons],
        replacement: str,
        other: pl.DataFrame | None,
    ) -> list[np.ndarray]:
        """Return the logits (vocabulary,) of a prompt with each set of neurons ablated.

        The neurons are replaced at the last position. replacement: zero, mean, or counterfactual,
        which is the value in the prompt `other`.
        """
        pairs = self._pairs(prompt, other)
        rows = self._interventions(dict(enumerate(sets)), replacement)
        values = self.executor.values(pairs)
        return [_array(self.executor.logits(values, row)[0]) for row in rows]

    def grid(
        self,
        operator: str,
        neurons: Neurons,
        drawn: Neurons,
        replacement: str,
        other: pl.DataFrame | None,
    ) -> Iterator[GridPart]:
        """Predict every cell with some neurons ablated, and with random ones (`drawn`)."""
        cells = self._prompts(f"{PROMPTS} order by op1, op2", operator=operator)
        table = self._table(cells, other)
        ablations = self._interventions({ABLATED: neurons, RANDOM: drawn}, replacement)
        rows = (Intervention(CLEAN, None, None, ()), *ablations)
        op1, op2, done = cells["op1"].to_numpy(), cells["op2"].to_numpy(), 0
        for pairs in self.executor.sizes.groups(table):
            predicted = np.zeros((3, len(pairs)), np.int64)
            for batch, measured in self.executor.run(Block(pairs, rows)):
                numbers = [row.number for row in batch]
                predicted[numbers] = measured.predicted
            done += len(pairs)
            cell = pairs.number
            yield GridPart(done, len(cells), op1[cell], op2[cell], pairs.answers, predicted)

    def random(self, like: Neurons, seed: int) -> list[tuple[int, int]]:
        """Return as many random neurons of each layer, other than those given.

        There are fewer if a layer does not have as many others.
        """
        every = np.arange(self.executor.checkpoint.architecture.neurons)
        drawn = []
        for layer, neurons in _by_layer(like).items():
            others = np.setdiff1d(every, neurons)
            shuffled = np.random.default_rng([seed, layer]).permutation(others)
            drawn += [(layer, int(neuron)) for neuron in np.sort(shuffled[: len(neurons)])]
        return drawn

    def _interventions(
        self,
        sets: Mapping[int, Neurons],
        replacement: str,
    ) -> list[Intervention]:
        """Return the ablation of each set, checked like the rows of any experiment.

        sets: number of the intervention -> neurons.
        """
        if replacement == "mean" and not self.executor.means:
            fix = "replace by zero, or `make pull` the file."
            raise ExplorerError(f"the file {self._means} with the means is missing; {fix}")
        rows: list[dict] = []
        same = {"component": "neuron", "position": "last", "replacement": replacement}
        for number, neurons in sets.items():
            if not neurons:
                fix = "tick a heuristic or a neuron, or write some as layer:neuron."
                raise ExplorerError(f"no neuron is selected; {fix}")
            for layer, units in _by_layer(neurons).items():
                rows.append(same | {"intervention": number, "layer": layer, "units": units})
        table = pl.DataFrame(rows, INTERVENTIONS)
        try:
            return interventions.read(table, self.executor.checkpoint.architecture, ROLES)
        except interventions.InterventionError as error:
            raise ExplorerError(str(error).partition(": ")[2]) from None

    def _prompts(self, query: str, **parameters: Any) -> pl.DataFrame:
        """Return rows of PROMPTS with their positions as a struct, as in tables of pairs.

        An operand of one token has no position of a first token: that column is null.
        """
        rows = self.project.ask(query, subject=self.name, **parameters)
        positions = []
        for name in filter(lambda name: name.endswith("_position"), rows.columns):
            if not rows[name].null_count():
                positions.append(pl.col(name).alias(name.removesuffix("_position")))
        return rows.with_columns(positions=pl.struct(positions))

    def _pairs(self, prompt: pl.DataFrame, other: pl.DataFrame | None = None) -> PromptPairs:
        """Return a prompt paired with another, or with itself.

        The last pair is kept, and with it what the executor has computed from it.
        """
        key = _key(prompt), _key(prompt if other is None else other)
        if self._kept is None or self._kept[0] != key:
            [pairs] = by_length(self._table(prompt, other), 1)
            self._kept = key, pairs
        return self._kept[1]

    def _table(self, prompts: pl.DataFrame, other: pl.DataFrame | None) -> pl.DataFrame:
        """Return a table of pairs: each prompt with another prompt, or with itself."""
        for name in ("tokens", "answer_token", "positions"):
            value = pl.col(name)
            if other is not None:
                value = pl.lit(other[name].first(), other.schema[name])
            prompts = prompts.with_columns(value.alias(f"counterfactual_{name}"))
        return prompts


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor's values in float64, flat."""
    return tensor.double().flatten().cpu().numpy()


def _by_layer(neurons: Neurons) -> dict[int, list[int]]:
    """Return the neurons of each layer, sorted."""
    layers: dict[int, list[int]] = {}
    for layer, neuron in sorted(set(neurons)):
        layers.setdefault(layer, []).append(neuron)
    return layers


def _key(prompt: pl.DataFrame) -> tuple:
    """Return the cell of a prompt."""
    return prompt.select("operator", "op1", "op2").row(0)
