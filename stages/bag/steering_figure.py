"""Draw how often the prediction follows when neurons are set to their mean for another digit."""

import polars as pl

from stages.bag import why
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import BLUE, GREEN, GREY, VERMILION, Axes, Figure, Tables

PLACES = {  # of the table steering -> label of a row
    "ones": "ones digit",
    "tens": "tens digit",
    "asked": "predicted digit",
    "carry": "carry or borrow",
}
# arm of the table steering -> label, colour
ARMS = {
    "separating": ("neurons that the digit or carry explains best", BLUE),
    "labelled": ("the same among labelled neurons", VERMILION),
    "matched": ("others of nearest variance", GREEN),
    "random": ("as many random neurons", GREY),
    "all": ("all late neurons", "black"),
}


def steering(tables: Tables, subject: str) -> Figure:
    """Draw the share of prompts that follow against the number of neurons, a row for each place.

    Shaded: bootstrap intervals. An arm with two sizes is a line, with one size a dot.
    """
    title = (
        f"{subject}: late neurons are set to their mean over cells with another digit or carry; "
        "share of prompts whose prediction follows"
    )
    table = tables["steering"].filter(target="other").sort("neurons")
    places = places_of(table)
    figure, axes, columns = drawing.operator_panels(
        len(places), tables["pairs_found"], title, sharex=True, sharey=True
    )
    for operator, column, _ in columns:
        for axis, place in zip(column, places, strict=True):
            rows = table.filter(operator=operator, place=place)
            _arms(axis, rows)
            if rows.is_empty():
                drawing.absent(axis, _reason(tables, operator, place))
        column[-1].set_xlabel("patched neurons")
    counts = table["neurons"].to_list() or [10, 1000]
    ticks = [10**power for power in range(7) if min(counts) / 2 < 10**power < 2 * max(counts)]
    axes[0, 0].set(xscale="log", ylim=(-0.03, 1.05))
    axes[0, 0].set_xlim(min(counts) / 2, 2 * max(counts))
    axes[0, 0].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes[0, 0].minorticks_off()
    for axis, place in zip(axes[:, 0], places, strict=True):
        axis.set_ylabel(f"share that follows,\n{PLACES[place]}")
    drawing.legend(figure, 2)
    return figure


def places_of(table: pl.DataFrame) -> list[str]:
    """Return the places in a table, in the order of rows; those of whole results if it is empty."""
    present = {*table["place"]} or {"ones", "tens", "carry"}
    return [place for place in PLACES if place in present]


def _arms(axis: Axes, rows: pl.DataFrame) -> None:
    for arm, (label, colour) in ARMS.items():
        part = rows.filter(arm=arm)
        band = part["ci_low"], part["ci_high"]
        drawing.curve(axis, part["neurons"], part["follows"], label, colour, band=band)
        if len(part) == 1:
            axis.vlines(part["neurons"], *band, color=colour, linewidth=0.8)


def _reason(tables: Tables, operator: str, place: str) -> str:
    """Return why no prompt of an operator was steered at a place."""
    no_layer = why.no_late_layer(tables, operator)
    if no_layer != drawing.NO_ROWS:
        return no_layer
    if place == "carry" and operator not in ("add", "subtract"):
        return "only addition and subtraction have a carry"
    return f"no prompt has an answer for another {PLACES[place]}"
