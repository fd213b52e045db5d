"""Figures of heads: how faithful circuits of them are, and what they look at from the last position."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.core.slots import OPERANDS, first_of
from stages.lib.drawing import drawing, heat, steps
from stages.lib.drawing.drawing import ROLES, Axes, Figure, Tables

MANY = 100  # heads, from which on sizes of circuits are spread by their square roots
HEADS = 45  # most heads of a model that are all drawn
SHOWN = 30  # heads of an operator that are drawn of a model with more
FIRST = ["bos", "first token"]  # columns of a prompt's first token


def heads(tables: Tables, subject: str) -> Figure:
    """Draw circuits of heads; rings: the smallest that reach a faithfulness, which is written beside them."""
    title = f"{subject}: circuits of heads and all MLPs; rings: the smallest that reach the faithfulness written there"
    figure, axes = drawing.circuits(tables["head_faithfulness"], tables["pairs_found"], "heads", title)
    sizes = tables["head_faithfulness"]["heads"].unique().sort().to_list()
    for place, operator in enumerate(drawing.operators(tables["pairs_found"])):
        marks = tables["smallest_circuits"].filter(operator=operator).drop_nulls("heads")
        marks = marks.group_by("heads", maintain_order=True).agg(pl.max("target"), pl.first("faithfulness", "accuracy"))
        for axis, measure in zip(axes[:, place], ["faithfulness", "accuracy"], strict=True):
            axis.plot(marks["heads"], marks[measure], "o", markersize=5, markerfacecolor="none", color="black", zorder=3)
        for count, target, height, _ in marks.iter_rows():
            axes[0, place].annotate(f"{target:g}", (count, height), (0, -6), textcoords="offset points", va="top", ha="center",
                rotation=90, fontsize=7)  # fmt: skip
        axes[1, place].set_xlabel("\n".join(["heads in the circuit", *_no_circuit(tables, operator)]))
        if max(sizes, default=0) > MANY:
            _spread(axes[:, place], sizes)
    drawing.legend(figure)
    return figure


def _spread(axes: np.ndarray, sizes: list[int]) -> None:
    """Spread sizes of circuits by their square roots, with a tick for each that has room for its label."""
    ticks = {size: label for size, label in zip(sizes, steps.labels(sizes), strict=True) if label}
    for axis in axes:
        steps.axis(axis, sizes)
        axis.set_xticks(list(ticks), list(ticks.values()), rotation=90)


def _no_circuit(tables: Tables, operator: str) -> list[str]:
    """Return lines that say that the circuit of an operator is all heads, and why; none if it is smaller."""
    sizes = tables["head_faithfulness"].filter(operator=operator)["heads"].unique().sort().to_list()
    circuit = tables["circuit_heads"].filter(operator=operator)
    if len(sizes) < 2 or circuit.height < sizes[-1]:
        return []
    return [f"no circuit of up to {sizes[-2]} heads is", f"faithful enough: all {sizes[-1]} are kept"]


@dataclass(frozen=True)
class Prompt:
    """The columns of prompts. names: key position -> its column, in order; earlier: columns before the question."""

    names: dict[str, str]
    earlier: list[str]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(self.names.values()))


def attention(tables: Tables, subject: str) -> Figure:
    """Draw the mean attention from the last position to the question; frames: heads of the circuit.

    Of what precedes the question, such as solved examples, the first token has a column of its own,
    since it often takes most of the attention, and all others share one, with their sum.
    """
    table = tables["attention_patterns"].filter(query_position="last")
    prompt = _prompt(table, tables["pairs"])
    column = pl.col("key_position").replace_strict(prompt.names, return_dtype=pl.String)
    keys = ["operator", "layer", "head"]
    count = table.select("layer", "head").unique().height
    shown = _shown(tables, table, SHOWN if count > HEADS else count)
    drawn = table.group_by(*keys, column=column).agg(value=pl.sum("weight")).join(shown, on=keys).sort(keys)
    title = f"{subject}: mean attention from the last position; framed: heads of the circuit"
    if count > HEADS:
        title += f"; drawn: {SHOWN} of {count} heads, the circuit's and those of largest logit effect"
    drawn = drawn.with_columns(row=pl.format("L{} head {}", "layer", "head"))
    return _attention(tables, drawn, prompt, title)


def _prompt(table: pl.DataFrame, pairs: pl.DataFrame) -> Prompt:
    """Return the columns of prompts, whose positions stand in the table in order."""
    positions = table["key_position"].unique(maintain_order=True).to_list()
    if table.is_empty():
        return Prompt({role: role for role in ROLES}, [])
    names = {position: position for position in positions}
    starts = []
    for operand in OPERANDS:
        last = positions.index(operand)
        starts.append(last - _width(pairs, operand) + 1)
        for number, position in enumerate(positions[starts[-1] : last], 1):
            names[position] = f"{operand}, token {number}"
    starts.append(positions.index("operator"))
    earlier = positions[1 : min(starts)]
    if not earlier:
        return Prompt(names, [])
    names |= dict.fromkeys(earlier, f"{len(earlier)} earlier tokens")
    names[positions[0]] = FIRST[positions[0] != FIRST[0]]
    return Prompt(names, [names[positions[0]], names[earlier[0]]])


def _width(pairs: pl.DataFrame, operand: str) -> int:
    """Return the tokens of the longest operand."""
    places = pairs["positions"].struct.unnest()
    if first_of(operand) not in places.columns:
        return 1
    return 1 + (places[operand] - places[first_of(operand)]).to_numpy().max()


def _shown(tables: Tables, table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the heads that are drawn, the first of each operator: those of its circuit by rank, then by logit effect.

    Column framed: whether a head is of a circuit of less than all heads.
    """
    keys = ["operator", "layer", "head"]
    effects = tables["component_effects"].filter(component="head").group_by(keys).agg(pl.max("logit_effect"))
    heads = table.select(keys).unique().join(effects, on=keys, how="left")
    heads = heads.join(tables["circuit_heads"].select(*keys, "rank"), on=keys, how="left")
    order = ["rank", "logit_effect", "layer", "head"]
    heads = heads.sort(order, descending=[False, True, False, False], nulls_last=True)
    is_smaller = pl.col("rank").null_count().over("operator") > 0
    framed = heads.with_columns(framed=is_smaller & pl.col("rank").is_not_null())
    return framed.group_by("operator").head(count).select(*keys, "framed")


def _attention(tables: Tables, table: pl.DataFrame, prompt: Prompt, title: str) -> Figure:
    """Draw a panel for each operator, with its own heads, and what precedes the question on a scale of its own."""
    question = table.filter(~pl.col("column").is_in(prompt.earlier))
    limits = (0, max(question["value"], default=1.0) if prompt.earlier else 1)
    heads = table.group_by("operator").agg(pl.col("row").unique().sort())["row"].to_list()
    alike = all(names == heads[0] for names in heads)
    width = max(1.7, heat.COLUMN * len(prompt.columns)) + (0 if alike else 0.6)
    size = (width, min(max(0.17 * max(map(len, heads), default=0), 1.2), 9))
    figure, axes, panels = drawing.operator_panels(1, tables["pairs_found"], title, size, sharex=True, sharey=alike)
    for operator, [axis], why in panels:
        part = table.filter(operator=operator)
        rows = part["row"].unique(maintain_order=True).to_list()
        heat.heat_table(axis, question.filter(operator=operator), rows, prompt.columns, limits)
        if part.is_empty():
            drawing.absent(axis, why)
        elif prompt.earlier:
            _earlier(axis, heat.matrix(part, rows, prompt.columns)[:, : len(prompt.earlier)])
        for row in part.filter("framed")["row"].unique(maintain_order=True):
            _frame(axis, rows.index(row), len(prompt.columns))
        axis.set_xlabel("\n".join(_no_circuit(tables, operator)))
    if prompt.earlier:
        heat.colour_bar(figure, axes, (0, 1), "weight on earlier tokens", cmap="Greys")
    heat.colour_bar(figure, axes, limits, "attention weight" + " on the question" * bool(prompt.earlier))
    heat.finish(figure)
    return figure


def _earlier(axis: Axes, values: np.ndarray) -> None:
    """Draw the first columns of a heat map in grey."""
    rows, columns = values.shape
    edges = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    limits = axis.get_xlim(), axis.get_ylim()
    axis.imshow(values, cmap="Greys", vmin=0, vmax=1, interpolation="nearest", aspect="auto", extent=edges)
    axis.set(xlim=limits[0], ylim=limits[1])
    axis.axvline(columns - 0.5, color="white", linewidth=2)


def _frame(axis: Axes, row: int, columns: int) -> None:
    axis.hlines([row - 0.45, row + 0.45], -0.5, columns - 0.5, color=drawing.OWN, linewidth=1.2)
    axis.vlines([-0.5, columns - 0.5], row - 0.45, row + 0.45, color=drawing.OWN, linewidth=1.2)
