"""Draw how well lenses tell what neurons promote, by layer, and examples of measured changes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.lib.core.hdf5_store import LayerStore
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Axes, Figure, Tables

TABLES = [
    "circuit/pairs_found.parquet",
    "neurons/causal_votes.parquet",
    "neurons/logit_shifts.parquet",
    "neurons/vote_agreement.parquet",
]
LENSES = {
    "correlation": ("logit lens", drawing.BLUE),
    "tuned_correlation": ("tuned lens", drawing.GREEN),
    "chance_correlation": ("logit lens of another neuron", drawing.GREY),
}
EXAMPLES, LAYERS = 4, 4  # neurons of each layer, layers
NONE = "no neuron was shifted: no layer is late, or no prompt is answered correctly"
LARGEST_DOT = 12  # square points, for models whose answers have few first digits


def main(subject: str) -> None:
    """Draw both figures of one model."""
    folder = Path("reports") / subject / "neurons/vote_figures"
    store = Path("data") / subject / "store/value_logits.h5"
    inputs = drawing.tables(subject, TABLES), subject, store
    drawing.write(FIGURES, folder, *inputs)


def agreement(tables: Tables, subject: str, _: Path) -> Figure:
    """Draw mean correlations with the measured change against layers, one panel per operator."""
    title = f"{subject}: correlation over numbers of the measured change of logits with lenses"
    figure, axes, columns = drawing.operator_panels(1, tables["pairs_found"], title, sharey=True)
    axes[0, 0].set_ylabel("mean correlation")
    for operator, [axis], why in columns:
        rows = tables["vote_agreement"].filter(operator=operator)
        if rows.is_empty():
            drawing.absent(axis, NONE if why == drawing.NO_ROWS else why)
            continue
        layers = rows["layer"].to_list()
        for column, (label, colour) in LENSES.items():
            drawing.curve(axis, layers, rows[column], label, colour)
        guide: dict[str, Any] = {"linestyle": "--", "marker": ""}
        drawing.curve(
            axis, layers, rows["ceiling"], "most, on so few prompts", drawing.GUIDE, **guide
        )
        axis.set_xlabel("layer")
        axis.set_xticks(drawing.evenly(layers, 6))
        axis.set_ylim(-1.05, 1.05)
    drawing.legend(figure)
    return figure


def examples(tables: Tables, subject: str, store: Path) -> Figure:
    """Draw measured against direct changes of all numbers, for a few layers' strongest neurons."""
    votes = tables["causal_votes"]
    first = "".join(votes["operator"].unique().sort().to_list()[:1])
    own = votes.filter(operator=first).drop_nulls("correlation")
    rows: list[tuple[str, list[tuple[str, pl.DataFrame]]]] = []
    for layer in drawing.evenly(own["layer"].unique().sort().to_list(), LAYERS):
        strongest = own.filter(layer=layer).sort("strength", "neuron", descending=[True, False])
        panels = [(_name(row), row) for row in strongest.head(EXAMPLES).iter_slices(1)]
        rows.append((f"layer {layer}\nmeasured", panels))
    title = (
        f"{subject}, {first}: change of each number’s logit by one standard deviation of a neuron, "
        "measured against its value logit alone"
    )
    figure, filled = drawing.rows_of_panels(rows, title, (2.0, 1.8))
    for axis, row in filled:
        if not rows:
            drawing.absent(axis, NONE)
            continue
        _example(axis, row.row(0, named=True), tables["logit_shifts"], LayerStore(store))
    for axis in figure.axes[-EXAMPLES:]:
        axis.set_xlabel("direct")
    return figure


def _name(row: pl.DataFrame) -> str:
    [neuron], [correlation] = row["neuron"], row["correlation"]
    return f"neuron {neuron}: {correlation:.2f}"


def _example(axis: Axes, vote: dict, changes: pl.DataFrame, store: LayerStore) -> None:
    """Draw a dot per number: its measured change upwards, the direct one to the right."""
    keys = {key: vote[key] for key in ("operator", "layer", "neuron")}
    measured = changes.filter(**keys).row(0, named=True)
    neuron = slice(vote["neuron"], vote["neuron"] + 1)
    logits = store.read(vote["layer"], neuron, slice(None))[0].astype(np.float64)
    direct = (logits - logits.mean()) * measured["std"] * measured["scale"]
    size = min(max(1000 / len(direct), 1), LARGEST_DOT)
    axis.scatter(direct, measured["changes"], s=size, color=drawing.BLUE, linewidths=0)
    axis.axline((0, 0), slope=1, color=drawing.GUIDE, linewidth=0.7, linestyle="--")
    axis.locator_params("x", nbins=4)  # more ticks would run into each other


FIGURES = {"agreement": agreement, "examples": examples}

if __name__ == "__main__":
    main(sys.argv[1])
