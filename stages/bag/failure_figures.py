"""Draw figures of cells that the model answers wrongly: their heuristics and their features."""

import re
from typing import Any

import numpy as np
import polars as pl

from stages.bag import why
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import BLUE, VERMILION, Axes, Figure, Tables

MEASURES = {
    "associated_neurons": "associated neurons of late layers",
    "answer_contribution": "contribution to the answer, logits",
}
SIDES = {
    True: ("answered correctly", "mean_correct", BLUE),
    False: ("answered wrongly", "mean_incorrect", VERMILION),
}
STATISTICS = {"d": "d", "AUC": "auc"}  # name in the panel -> column of failure_tests
BINS = 40  # of a density, about
TAIL = 0.002  # share of cells at either end that does not widen a density
FEWEST = 5  # cells that fail, and cells that do not, for a comparison
FEATURES = 3  # features that are drawn, those with the largest information gain


def failures(tables: Tables, subject: str, criterion: str = "fdr") -> Figure:
    """Draw densities of each measure over correct cells and over wrong cells, by operator."""
    title = (
        f"{subject}: heuristic neurons ({criterion}) of cells answered correctly and wrongly; "
        "dashed: means; d and AUC compare wrong cells with correct cells"
    )
    pairs_found = tables["pairs_found"]
    figure, axes, columns = drawing.operator_panels(2, pairs_found, title, (2.2, 1.8))
    for operator, column, _ in columns:
        rows = {"operator": operator, "criterion": criterion}
        cells, tests = (tables[name].filter(**rows) for name in ("failures", "failure_tests"))
        reason = too_few(tests, why.no_pairs(tables, operator))
        if not reason and not cells["associated_neurons"].sum():
            reason = why.no_associated(tables, operator, criterion)
        column[0].set_title(f"{operator}\n{wrongly(tests)}")
        for axis, (measure, label) in zip(column, MEASURES.items(), strict=True):
            axis.set_xlabel(label)
            if reason:
                drawing.absent(axis, reason)
            else:
                _densities(axis, cells, measure, tests.filter(measure=measure).row(0, named=True))
    for axis in axes[:, 0]:
        axis.set_ylabel("share of cells")
    drawing.legend(figure)
    return figure


def wrongly(tests: pl.DataFrame) -> str:
    """Return how many cells are answered wrongly; tests: an operator's rows of failure_tests."""
    counts = tests.select("cells_correct", "cells_incorrect").head(1).rows()
    return "".join(f"{wrong:,} of {correct + wrong:,} cells wrong" for correct, wrong in counts)


def too_few(tests: pl.DataFrame, no_pairs: str) -> str:
    """Return why an operator's correct and wrong cells are not compared; empty if they are.

    tests: its rows of failure_tests; no_pairs: why it has no prompts.
    """
    if tests.is_empty():
        return no_pairs or drawing.NO_ROWS
    correct, wrong = tests.select("cells_correct", "cells_incorrect").row(0)
    few, how = min((wrong, "wrongly"), (correct, "correctly"))
    if few >= FEWEST:
        return ""
    cells = {0: "no cell is", 1: "only 1 cell is"}.get(few, f"only {few} cells are")
    return f"{cells} answered {how}"


def _densities(axis: Axes, cells: pl.DataFrame, measure: str, test: dict[str, Any]) -> None:
    """Draw the share of correct cells and of wrong cells in each bin.

    Bins of whole numbers have whole widths. The outermost bins hold rare extremes. test: the
    measure's row of failure_tests.
    """
    values = {side: cells.filter(correct=side)[measure] for side in SIDES}
    edges = _edges(list(values.values()))
    for side, (label, mean, colour) in SIDES.items():
        clipped = values[side].to_numpy().clip(edges[0], edges[-1])
        shares = np.histogram(clipped, edges)[0] / len(clipped)
        axis.stairs(shares, edges, color=colour, fill=True, alpha=0.5, label=label)
        axis.axvline(test[mean], ymax=0.75, color=colour, linewidth=1, linestyle="--")
    axis.set_ylim(top=axis.get_ylim()[1] / 0.75)  # room for text
    lines = [
        f"{name} {test[key]:z.2f} ({test[key + '_ci_low']:z.2f} to {test[key + '_ci_high']:z.2f})"
        for name, key in STATISTICS.items()
        if test[key] is not None
    ]
    position: dict[str, Any] = {"transform": axis.transAxes, "ha": "right", "va": "top"}
    axis.text(0.97, 0.97, "\n".join(lines), **position, fontsize=7)


def _edges(samples: list[pl.Series]) -> np.ndarray:
    """Return the edges of bins that hold all samples but their rarest extremes."""
    ends = [sample.quantile(TAIL) or 0.0 for sample in samples]
    ends += [sample.quantile(1 - TAIL) or 0.0 for sample in samples]
    low, high = min(ends), max(ends)
    start, width = low, (high - low) / BINS or 1.0
    if samples[0].dtype.is_integer():
        start, width = low - 0.5, max(np.ceil((high - low) / BINS), 1)
    return start + width * np.arange(np.floor((high - low) / width) + 2)


def failure_inputs(tables: Tables, subject: str) -> Figure:
    """Draw the share of cells that fail by value of the most informative features, as bars.

    A dashed line is the share among all the operator's cells.
    """
    title = (
        f"{subject}: share of cells answered wrongly, and their number, "
        "by the features with the largest information gain about failure"
    )
    pairs_found = tables["pairs_found"]
    figure, _, columns = drawing.operator_panels(FEATURES, pairs_found, title, (2.3, 1.8))
    for operator, column, _ in columns:
        table = tables["failure_inputs"].filter(operator=operator)
        tests = tables["failure_tests"].filter(operator=operator)
        reason = too_few(tests, why.no_pairs(tables, operator))
        ranked = table.sort("gain", "feature", descending=[True, False])["feature"]
        features = ranked.unique(maintain_order=True).head(FEATURES).to_list()
        features += [None] * (FEATURES - len(features))
        for axis, feature in zip(column, features, strict=True):
            if reason or feature is None:
                drawing.absent(axis, reason or "no further feature")
            else:
                _shares(axis, table.filter(feature=feature), drawing.COLOURS[operator])
                axis.set_title(f"{operator}: " * (axis is column[0]) + feature)
    drawing.legend(figure)
    return figure


def _shares(axis: Axes, rows: pl.DataFrame, colour: str) -> None:
    """Draw one feature of one operator, a bar for each value."""
    bars = rows.select("value", "share", "failures", "cells").rows()
    bars.sort(key=lambda row: _natural(row[0]))
    values, shares, failures, cells = zip(*bars, strict=True)
    usual = sum(failures) / sum(cells)
    axis.barh(range(len(values)), shares, 0.8, color=colour)
    for y, (_, share, wrong, count) in enumerate(bars):
        axis.text(max(share, usual), y, f" {wrong} of {count}", ha="left", va="center", fontsize=7)
    dashes: dict[str, Any] = {"color": drawing.GUIDE, "linewidth": 0.8, "linestyle": "--"}
    axis.axvline(usual, **dashes, label="all cells of the operator")
    axis.set(xlim=(0, 1.7 * max(shares)), axisbelow=True)
    gains = rows.select("gain", "gain_chance").row(0)
    axis.set_xlabel("gain {:.2g} bits, {:.1g} by chance".format(*gains), fontsize=7)
    axis.locator_params(axis="x", nbins=4)
    axis.set_yticks(range(len(values)), [value.replace(", ", ",\n") for value in values])
    axis.invert_yaxis()


def _natural(value: str) -> tuple[int, str]:
    """Return a key that sorts numbers and spans by size, and words after the alphabet."""
    number = re.match(r"\d+", value)
    return (int(number[0]) if number else -1, value)
