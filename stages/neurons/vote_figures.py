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
EXAMPLES, LAYERS = 2, 4  # neurons of each layer, layers
NONE = "no neuron was shifted"


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
            drawing.absent(axis, why)
            continue
        layers = rows["layer"].to_list()
        for column, (label, colour) in LENSES.items():
            drawing.curve(axis, layers, rows[column], label, colour)
        guide: dict[str, Any] = {"linestyle": "--", "marker": ""}
        drawing.curve(axis, layers, rows["ceiling"], "perfect lens", drawing.GUIDE, **guide)
        axis.set_xlabel("layer")
        axis.set_xticks(drawing.evenly(layers, 6))
        axis.set_ylim(-1.05, 1.05)
    drawing.legend(figure)
    return figure


def examples(tables: Tables, subject: str, store: Path) -> Figure:
    """Draw changes of all numbers' logits by the strongest neurons of a few layers."""
    votes = tables["causal_votes"]
    operators = votes["operator"].unique().sort().to_list()
    first = "".join(operators[:1])
    own = votes.filter(operator=first).drop_nulls("correlation")
    layers = drawing.evenly(own["layer"].unique().sort().to_list(), LAYERS)
    title = (
        f"{subject}, {first}: change of each number’s logit by one standard deviation of a neuron"
    )
    rows = []
    for layer in layers:
        strongest = own.filter(layer=layer).sort("strength", "neuron", descending=[True, False])
        rows.append((f"layer {layer}\nlogits", [*strongest.head(EXAMPLES).iter_slices(1)]))
    panels = [(label, [(_name(row), row) for row in line]) for label, line in rows]
    figure, filled = drawing.rows_of_panels(panels, title, (3.2, 1.3))
    changes = tables["logit_shifts"]
    for axis, row in filled:
        if row.is_empty() or not panels:
            drawing.absent(axis, NONE)
            continue
        _example(axis, row.row(0, named=True), changes, LayerStore(store))
    drawing.legend(figure)
    return figure


def _name(row: pl.DataFrame) -> str:
    [neuron], [correlation] = row["neuron"], row["correlation"]
    return f"neuron {neuron}, correlation {correlation:.2f}"


def _example(axis: Axes, vote: dict, changes: pl.DataFrame, store: LayerStore) -> None:
    """Draw the measured change and the direct one of one neuron."""
    keys = {key: vote[key] for key in ("operator", "layer", "neuron")}
    measured = changes.filter(**keys).row(0, named=True)
    neuron = slice(vote["neuron"], vote["neuron"] + 1)
    logits = store.read(vote["layer"], neuron, slice(None))[0].astype(np.float64)
    direct = (logits - logits.mean()) * measured["std"] * measured["scale"]
    numbers = np.arange(len(direct))
    thin: dict[str, Any] = {"marker": "", "linewidth": 0.6}
    drawing.curve(axis, numbers, direct, "direct (value logit)", drawing.BLUE, **thin)
    drawing.curve(axis, numbers, measured["changes"], "measured", drawing.VERMILION, **thin)


FIGURES = {"agreement": agreement, "examples": examples}

if __name__ == "__main__":
    main(sys.argv[1])
