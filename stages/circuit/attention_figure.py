"""Draw the attention of heads from the last position."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import ROLES, Axes, Figure, Tables

HEADS = 45  # most heads of a model that are all drawn
NO_WEIGHTS = "this model does not return its attention weights"
SHOWN = 30  # heads of an operator that are drawn of a model with more


def no_circuit(tables: Tables, operator: str) -> list[str]:
    """Return lines that say why the circuit of an operator is all heads; none if it is not."""
    sizes = tables["head_faithfulness"].filter(operator=operator)["heads"].unique().sort().to_list()
    circuit = tables["circuit_heads"].filter(operator=operator)
    if len(sizes) < 2 or circuit.height < sizes[-1]:
        return []
    return [
        f"no circuit of up to {sizes[-2]} heads is",
        f"faithful enough: all {sizes[-1]} are kept",
    ]


@dataclass(frozen=True)
class KeyColumns:
    """Hold the columns of the figure.

    names: table with columns operator, key_position and column; columns: their names in order;
    earlier: names of the columns with tokens before the question.
    """

    names: pl.DataFrame
    columns: list[str]
    earlier: list[str]


def attention(tables: Tables, subject: str) -> Figure:
    """Draw the mean attention from the last position to the question.

    Frames mark heads of the circuit. Tokens before the question, such as solved examples, have two
    columns: one of the first token, which often takes most of the attention, and one of the sum of
    all others.
    """
    table = tables["attention_patterns"].filter(query_position="last")
    columns = _columns(table)
    keys = ["operator", "layer", "head"]
    count = table.select("layer", "head").unique().height
    shown = _shown(tables, table, SHOWN if count > HEADS else count)
    weights = table.join(columns.names, on=["operator", "key_position"]).join(shown, on=keys)
    # sums are rounded, because their last bits depend on the number of threads
    total = pl.col("weight").cast(pl.Float64).sum()
    value = pl.when(pl.len() > 1).then(total.round(6)).otherwise(total)
    weights = weights.group_by(*keys, "framed", "column").agg(value=value).sort(keys)
    title = f"{subject}: mean attention from the last position; framed: heads of the circuit"
    if count > HEADS:
        which = "the circuit's and those of largest logit effect"
        title += f"; drawn: {SHOWN} of {count} heads, {which}"
    weights = weights.with_columns(row=pl.format("L{} head {}", "layer", "head"))
    return _attention(tables, weights, columns, title)


def _columns(table: pl.DataFrame) -> KeyColumns:
    """Return the columns; the table has each operator's positions in order."""
    rows: list[tuple[str, str, str]] = []
    earlier: list[str] = []
    for (operator,), part in table.group_by("operator", maintain_order=True):
        positions = part["key_position"].unique(maintain_order=True).to_list()
        names, before = _names(positions)
        rows += [(operator, *name) for name in names.items()]  # type: ignore[misc]
        earlier = list(dict.fromkeys(names[position] for position in before))
    frame = pl.DataFrame(
        rows,
        dict.fromkeys(["operator", "key_position", "column"], pl.String),
        orient="row",
    )
    longest = frame.group_by("operator", maintain_order=True).agg("column", n=pl.n_unique("column"))
    columns = longest.sort("n", descending=True, maintain_order=True)["column"].explode()
    return KeyColumns(frame, columns.unique(maintain_order=True).to_list() or ROLES, earlier)


def _names(positions: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the column of each position of a prompt, and the positions before the question."""
    names = {position: position for position in positions}
    # an operand's tokens before its last are called `op1, last but 1`; without a token after it,
    # op2 is `last`
    is_asked = [position.partition(",")[0] in ROLES for position in positions]
    before = positions[: is_asked.index(True)]
    if len(before) > 1:
        names |= dict.fromkeys(before[1:], f"{len(before) - 1} earlier tokens")
        names[before[0]] = before[0] if before[0] == "bos" else "first token"
        return names, before
    return names, []


def _shown(tables: Tables, table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the heads that are drawn: those of the circuit by rank, then others by logit effect.

    count: number of heads for each operator. The column framed says whether a head is in the
    circuit; no head is framed if the circuit holds all heads.
    """
    keys = ["operator", "layer", "head"]
    effects = tables["component_effects"].filter(component="head")
    effects = effects.group_by(keys).agg(pl.max("logit_effect"))
    heads = table.select(keys).unique().join(effects, on=keys, how="left")
    heads = heads.join(tables["circuit_heads"].select(*keys, "rank"), on=keys, how="left")
    order = ["rank", "logit_effect", "layer", "head"]
    heads = heads.sort(order, descending=[False, True, False, False], nulls_last=True)
    is_smaller = pl.col("rank").null_count().over("operator") > 0
    framed = heads.with_columns(framed=is_smaller & pl.col("rank").is_not_null())
    return framed.group_by("operator").head(count).select(*keys, "framed")


def _attention(tables: Tables, table: pl.DataFrame, keys: KeyColumns, title: str) -> Figure:
    """Draw a panel for each operator, with its own heads.

    Tokens before the question have their own colour scale.
    """
    question = table.filter(~pl.col("column").is_in(keys.earlier))
    limits = (0, 1.0)
    if keys.earlier:
        limits = (0, max(question["value"], default=1.0) or 1.0)
    heads = {
        operator: table.filter(operator=operator)["row"].unique(maintain_order=True).to_list()
        for operator in table["operator"].unique(maintain_order=True)
    }
    most = max(heads.values(), key=len, default=[])
    alike = all(names == most for names in heads.values())
    width = max(1.7, heat.COLUMN * len(keys.columns)) + 0.6 * (not alike)
    size = (width, min(max(0.17 * len(most), 1.2), 9))
    figure, axes, panels = drawing.operator_panels(
        1,
        tables["pairs_found"],
        title,
        size,
        sharex=True,
        sharey=alike,
    )
    for operator, [axis], why in panels:
        part = table.filter(operator=operator)
        rows = heads.get(operator, most)  # a panel without data shares the rows of the others
        heat.heat_table(axis, question.filter(operator=operator), rows, keys.columns, limits)
        if part.is_empty():
            has_pairs = operator in tables["pairs"]["operator"]
            drawing.absent(axis, NO_WEIGHTS if has_pairs else why)
        elif keys.earlier:
            _earlier(axis, heat.matrix(part, rows, keys.columns)[:, : len(keys.earlier)])
        for row in part.filter("framed")["row"].unique(maintain_order=True):
            _frame(axis, rows.index(row), len(keys.columns))
        axis.set_xlabel("\n".join(no_circuit(tables, operator)))
    if keys.earlier:
        heat.colour_bar(figure, axes, (0, 1), "weight on earlier tokens", cmap="Greys")
    label = "attention weight" + " on the question" * bool(keys.earlier)
    heat.colour_bar(figure, axes, limits, label)
    heat.finish(figure)
    return figure


def _earlier(axis: Axes, values: np.ndarray) -> None:
    """Draw the first columns of a heat map in grey."""
    rows, columns = values.shape
    edges = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    limits = axis.get_xlim(), axis.get_ylim()
    axis.imshow(
        values,
        cmap="Greys",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        aspect="auto",
        extent=edges,
    )
    axis.set(xlim=limits[0], ylim=limits[1])
    axis.axvline(columns - 0.5, color="white", linewidth=2)


def _frame(axis: Axes, row: int, columns: int) -> None:
    axis.hlines([row - 0.45, row + 0.45], -0.5, columns - 0.5, color=drawing.OWN, linewidth=1.2)
    axis.vlines([-0.5, columns - 0.5], row - 0.45, row + 0.45, color=drawing.OWN, linewidth=1.2)
