"""Draw figures of neurons as heat maps, for models with too many layers for lines.

A site is a layer and a position. It is a row of a map.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Figure, Tables
from stages.neurons import why

# Largest number of sites that are drawn as lines: eight late layers and three positions of the
# first layer.
SITES = 11
STEPS = (1, 2, 5)  # drawn ranks of neurons, times powers of 10
CHANCE, CORRELATION = "chance", "rank corr."


@dataclass(frozen=True)
class Maps:
    """A row of heat maps, one for each operator.

    table: columns operator, layer, position, column and value; label: of the row; scale: label of
    the colours.
    """

    label: str
    table: pl.DataFrame
    limits: tuple[float, float]
    scale: str
    is_logarithmic: bool = False


def are_many(table: pl.DataFrame) -> bool:
    """Return whether a table has too many sites for lines."""
    return table.select("layer", "position").drop_nulls().n_unique() > SITES


def site(layer: int, position: str) -> str:
    """Return the name of a site."""
    return f"L{layer} {position}"


def both(a: str, b: str) -> str:
    """Return the names of two rankings."""
    return f"{drawing.RANKING_NAMES[a]} and\n{drawing.RANKING_NAMES[b]}"


def neuron_effects(tables: Tables, title: str) -> Figure:
    """Draw the effects above 0 of the neurons of some ranks."""
    table = tables["neuron_effects"].filter(method="exact")
    most = int(table["rank"].max())  # type: ignore[arg-type]
    ranks = [step * 10**power for power in range(len(str(most))) for step in STEPS]
    ranks = [rank for rank in ranks if rank <= most]
    rows = []
    labels = {
        "effect": ("rank", "mean effect (Eq. 1)"),
        "logit_effect": ("rank_logit", "mean logit effect, logits"),
    }
    for measure, (rank, label) in labels.items():
        part = table.filter(pl.col(measure) > 0, pl.col(rank).is_in(ranks))
        values = part[measure].to_list() or [1.0]
        drawn = part.with_columns(column=pl.col(rank).cast(pl.String), value=measure)
        rows.append(Maps(label, drawn, (min(values), max(values)), label, is_logarithmic=True))
    return _draw(tables, rows, list(map(str, ranks)), title, "rank of the neuron", why.no_effect)


def rankings(tables: Tables, pairs: list[tuple[str, str]], title: str) -> Figure:
    """Draw the share of the top k neurons that two rankings have in common."""
    table = tables["ranking_agreement"].with_columns(
        column=pl.col("k").cast(pl.String), value="shared"
    )
    rows = []
    for a, b in pairs:
        part = table.filter(ranking_a=a, ranking_b=b)
        rows.append(Maps(both(a, b), _with_chance(part), (0, 1), "shared share"))
    return _draw(tables, rows, _ks(table), title, "k", why.no_k)


def attribution(tables: Tables, title: str) -> Figure:
    """Draw the recall of attribution for each k, then its rank correlation."""
    table = tables["attribution_agreement"].with_columns(
        column=pl.col("k").cast(pl.String), value="recall"
    )
    lowest = min([0.0, *table["rank_correlation"].drop_nulls()])
    limits = (-1.0 if lowest < 0 else 0.0, 1.0)
    rows = []
    labels = {"logit_effect": "largest logit effect", "effect": "largest effect"}
    for against, label in labels.items():
        part = table.filter(against=against)
        once = part.unique(["operator", "layer", "position"], keep="first", maintain_order=True)
        correlations = once.with_columns(column=pl.lit(CORRELATION), value="rank_correlation")
        both_measures = pl.concat([_with_chance(part), correlations])
        rows.append(Maps(label, both_measures, limits, "recall, correlation"))
    return _draw(tables, rows, [*_ks(table), CORRELATION], title, "k", why.no_k)


def _ks(table: pl.DataFrame) -> list[str]:
    return [str(k) for k in table["k"].unique().sort()]


def _with_chance(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with rows without a site, which have the mean of chance."""
    groups = table.group_by("operator", "k", "column")
    means = groups.agg(value=pl.mean("chance")).sort("operator", "k")
    return pl.concat([table, means], how="diagonal")


def _names(rows: list[Maps]) -> list[str]:
    """Return the names of sites by position and layer; chance, if it is in the tables, is first."""
    layers = pl.concat([row.table.select("layer", "position") for row in rows]).unique()
    sites = layers.drop_nulls().rows()
    ordered = sorted(sites, key=lambda place: (drawing.ROLES.index(place[1]), place[0]))
    names = [site(*place) for place in ordered]
    return [CHANCE, *names] if layers["layer"].null_count() else names


def _draw(
    tables: Tables,
    rows: list[Maps],
    columns: list[str],
    title: str,
    label: str,
    nothing: Callable[[Tables, str], str],
) -> Figure:
    """Draw rows of maps.

    label: of the columns; nothing: returns why an operator has nothing to draw
    """
    names = _names(rows)
    size = (max(1.9, heat.COLUMN * len(columns)), 0.09 * len(names))
    figure, axes, panels = drawing.operator_panels(
        len(rows), tables["pairs_found"], title, size, sharex=True, sharey=True
    )
    name = pl.coalesce(pl.format("L{} {}", "layer", "position"), pl.lit(CHANCE))
    for operator, column, _ in panels:
        for axis, row in zip(column, rows, strict=True):
            part = row.table.filter(operator=operator).with_columns(row=name)
            style = {"is_logarithmic": row.is_logarithmic}
            heat.heat_table(axis, part, names, columns, row.limits, **style)
            if part.is_empty():
                drawing.absent(axis, nothing(tables, operator))
        column[-1].set_xlabel(label)
    for line, row in zip(axes, rows, strict=True):
        line[0].set_ylabel(row.label)
        style = {"is_logarithmic": row.is_logarithmic}
        heat.colour_bar(figure, np.array(line), row.limits, row.scale, **style)
    heat.finish(figure)
    return figure
