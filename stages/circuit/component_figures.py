"""Draw the effects of components on the answer.

Each component is a row. If there are many, each operator has maps of layers and heads.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import BLUE, ROLES, VERMILION, Axes, Figure, Tables

ROWS = 45  # most components with a row of their own
TOP = 20  # components in a list of those of largest effect
UNDEFINED = "effects are undefined: a probability that Eq. 1 divides by is 0"
KINDS = {"head": ("heads", BLUE), "mlp": ("MLPs", VERMILION)}
GAP, STRIP = 0.6, 1.8  # in heads: between the heads of a map and its MLPs, and the width of these


@dataclass(frozen=True)
class Measure:
    """Name an effect, the columns of its interval (low, high), and the label of its axis."""

    effect: str
    low: str
    high: str
    is_logarithmic: bool
    title: str
    label: str

    def drawn(self, column: str) -> pl.Expr:
        """Return a column as it is drawn; is_logarithmic compresses a wide range around 0."""
        value = pl.col(column)
        return value.sign() * value.abs().log1p() if self.is_logarithmic else value


EFFECT = Measure(
    "effect",
    "ci_low",
    "ci_high",
    True,
    "mean effect of patching a component",
    "sign(e) log(1 + |e|) of the mean effect e",
)
LOGIT_EFFECT = Measure(
    "logit_effect",
    "logit_ci_low",
    "logit_ci_high",
    False,
    "mean logit effect of patching a component",
    "mean logit effect, logits",
)


def component_effects(tables: Tables, subject: str) -> Figure:
    """Draw the mean effect (Eq. 1) of every component and position.

    Effects range from 1e-9 to 1e9, hence the logarithm.
    """
    return _components(tables, subject, EFFECT)


def component_effects_logit(tables: Tables, subject: str) -> Figure:
    """Draw the mean logit effect of every component and position."""
    return _components(tables, subject, LOGIT_EFFECT)


def _components(tables: Tables, subject: str, measure: Measure) -> Figure:
    table = tables["component_effects"].sort("layer", pl.col("head").fill_null(1 << 14))
    drawn = {"value": measure.effect, "low": measure.low, "high": measure.high}
    table = table.with_columns(measure.drawn(column).alias(name) for name, column in drawn.items())
    title = f"{subject}: {measure.title}"
    if table.select("layer", "head").n_unique() > ROWS:
        return _maps(table, tables["pairs_found"], title, measure.label)
    name = pl.concat_str(
        pl.lit("L"),
        "layer",
        pl.coalesce(pl.format(" head {}", "head"), pl.lit(" MLP")),
    )
    table = table.with_columns(row=name, column="position")
    limits = _limits(table)
    figure, axes = heat.operator_maps(tables["pairs_found"], table, ROLES, title, limits, UNDEFINED)
    heat.colour_bar(figure, axes, limits, measure.label)
    heat.finish(figure)
    return figure


def _limits(table: pl.DataFrame) -> tuple[float, float]:
    """Return the ends of a scale around 0 that holds all values."""
    largest = max(table["value"].drop_nulls().abs(), default=1.0) or 1.0
    return -largest, largest


def _maps(table: pl.DataFrame, pairs_found: pl.DataFrame, title: str, label: str) -> Figure:
    """Draw for each operator a map for each position, and a list of the largest effects.

    Heads and MLPs have scales of their own: a whole MLP often does more than any head.
    """
    reasons = drawing.operators(pairs_found)
    limits = {component: _limits(table.filter(component=component)) for component in KINDS}
    heights = [1 if operator in table["operator"] else 0.2 for operator in reasons]
    count = table.select("layer", "head", "position").n_unique()
    title += f"; right: the {TOP} largest of {count:,}, with intervals"
    figure, axes = drawing.panels(
        len(reasons),
        len(ROLES) + 1,
        title,
        (1.75, 2.9 * sum(heights) / len(heights)),
        height_ratios=heights,
    )
    for row, (operator, why) in zip(axes, reasons.items(), strict=True):
        part = table.filter(operator=operator)
        row[0].set_ylabel(operator if part.is_empty() else f"{operator}\nlayer")
        if part.is_empty():
            _nothing(row, why)
            continue
        for axis, position in zip(row, ROLES, strict=False):
            axis.set_title(position, fontsize=8)
            _map(axis, part.filter(position=position), limits)
        _largest(row[-1], part)
    for place, (component, (plural, _)) in enumerate(KINDS.items()):
        where = axes[:, 2 * place : 2 * place + 2]
        heat.colour_bar(figure, where, limits[component], f"{plural}: {label}", location="bottom")
    return figure


def _nothing(row: np.ndarray, why: str) -> None:
    """Say in a row of panels why an operator has no effects."""
    drawing.absent(row[0], why)
    row[0].set(xticks=[], yticks=[])
    row[0].spines[:].set_visible(False)
    for axis in row[1:]:
        axis.set_axis_off()


def _map(axis: Axes, part: pl.DataFrame, limits: dict[str, tuple[float, float]]) -> None:
    """Draw the heads of every layer, and its MLP right of them."""
    layers, heads = (part[name].drop_nulls().n_unique() for name in ("layer", "head"))
    values = {"head": np.full((layers, heads), np.nan), "mlp": np.full((layers, 1), np.nan)}
    rows = part.select("component", "layer", "head", "value").drop_nulls("value")
    for component, layer, head, value in rows.iter_rows():
        values[component][layer, head or 0] = value
    strip = heads - 0.5 + GAP
    edges = {"head": (-0.5, heads - 0.5), "mlp": (strip, strip + STRIP)}
    for component, (left, right) in edges.items():
        extent = (left, right, layers - 0.5, -0.5)
        axis.imshow(
            values[component],
            **heat.colours(limits[component]),
            interpolation="nearest",
            aspect="auto",
            extent=extent,
        )
    every, shown = -(-layers // 8), range(0, heads, -(-heads // 5))
    axis.set_yticks(range(0, layers, every))
    axis.set_xticks([*shown, strip + STRIP / 2], [*map(str, shown), "MLP"])
    axis.set(xlim=(-0.5, strip + STRIP), xlabel="head")
    heat.clear(axis)


def _largest(axis: Axes, part: pl.DataFrame) -> None:
    """Draw the largest effects as bars, from the top down, with their intervals."""
    order = [-pl.col("value").abs(), "layer", "head", "position"]
    largest = part.drop_nulls("value").sort(order)[:TOP]
    ys = np.arange(largest.height)
    colours = [KINDS[component][1] for component in largest["component"]]
    axis.barh(ys, largest["value"], 0.75, color=colours)
    axis.hlines(ys, largest["low"], largest["high"], color="black", linewidth=0.7)
    site = pl.coalesce(
        pl.format("L{}.H{} at {}", "layer", "head", "position"),
        pl.format("L{} MLP at {}", "layer", "position"),
    )
    axis.set_yticks(ys, largest.select(site).to_series().to_list())
    axis.set(ylim=(TOP - 0.5, -0.5), title="largest")
    axis.title.set_fontsize(8)
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
