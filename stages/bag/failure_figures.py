"""Figures of cells that fail: what their heuristics do for them beside other cells, and which inputs they are."""

import re
from typing import Any

import numpy as np
import polars as pl

from stages.bag import why
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import BLUE, VERMILION, Axes, Figure, Tables

MEASURES = {"associated_neurons": "neurons of its heuristics", "answer_contribution": "added to the answer, logits"}
SIDES = {True: ("answered correctly", "mean_correct", BLUE), False: ("answered wrongly", "mean_incorrect", VERMILION)}
BINS = 40  # of a density, about
TAIL = 0.002  # share of cells, at either end, that does not widen a density
FEWEST = 5  # cells that fail, and cells that do not, for a comparison
FEATURES = 3  # of those that tell most


def failures(tables: Tables, subject: str, membership: str = "called") -> Figure:
    """Densities of each measure (rows) over the cells of each operator that are answered correctly, and over those that are not."""
    title = (
        f"{subject}: {membership} neurons of cells that are answered correctly and wrongly; dashed: means; d, AUC: wrong against correct"
    )
    figure, axes, columns = drawing.operator_panels(2, tables["pairs_found"], title, (2.2, 1.8))
    for operator, column, _ in columns:
        cells, tests = (tables[name].filter(operator=operator, membership=membership) for name in ("failures", "failure_tests"))
        none = (
            ""
            if cells["associated_neurons"].sum()
            else why.no_associated(
                tables,
                operator,
                membership,
            )
        )
        reason = too_few(tests, why.no_pairs(tables, operator)) or none
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
    """How many cells fail; tests: an operator's rows of failure_tests."""
    counts = tests.select("cells_correct", "cells_incorrect").head(1).rows()
    return "".join(f"{wrong:,} of {correct + wrong:,} cells wrong" for correct, wrong in counts)


def too_few(tests: pl.DataFrame, no_pairs: str) -> str:
    """Return why an operator's correct and wrong cells are not compared; empty if they are.

    tests: its rows of failure_tests; no_pairs: why it has no prompts.
    """
    for correct, wrong in tests.select("cells_correct", "cells_incorrect").head(1).iter_rows():
        few, how = min((wrong, "wrongly"), (correct, "correctly"))
        count = f"only {few} cell" if few else "no cell"
        return f"{count}{'s are' if few > 1 else ' is'} answered {how}" if few < FEWEST else ""
    return no_pairs or drawing.NO_ROWS


def _densities(axis: Axes, cells: pl.DataFrame, measure: str, test: dict[str, Any]) -> None:
    """Each side's share of cells by bin, whole numbers whole, rare extremes in the outermost; test: the measure's row of failure_tests."""
    ends = [cells.filter(correct=side)[measure].quantile(share) or 0.0 for side in SIDES for share in (TAIL, 1 - TAIL)]
    low, high = min(ends), max(ends)
    whole = cells[measure].dtype.is_integer()
    width = max(np.ceil((high - low) / BINS), 1) if whole else (high - low) / BINS or 1.0
    edges = low - whole / 2 + width * np.arange(np.floor((high - low) / width) + 2)
    for side, (label, mean, colour) in SIDES.items():
        values = cells.filter(correct=side)[measure].to_numpy().clip(low, high)
        axis.stairs(np.histogram(values, edges)[0] / len(values), edges, color=colour, fill=True, alpha=0.5, label=label)
        axis.axvline(test[mean], ymax=0.75, color=colour, linewidth=1, linestyle="--")
    axis.set_ylim(top=axis.get_ylim()[1] / 0.75)  # room for text
    said = [
        f"{name} {test[key]:z.2f} ({test[key + '_ci_low']:z.2f} to {test[key + '_ci_high']:z.2f})"
        for name, key in (("d", "d"), ("AUC", "auc"))
        if test[key] is not None
    ]
    axis.text(0.97, 0.97, "\n".join(said), transform=axis.transAxes, ha="right", va="top", fontsize=7)


def failure_inputs(tables: Tables, subject: str) -> Figure:
    """Bars: which share of the cells fails by value of the features that tell most, and how many; line: of all the operator's cells."""
    title = f"{subject}: share of cells answered wrongly, and how many, by the features that tell most about it"
    figure, _, columns = drawing.operator_panels(FEATURES, tables["pairs_found"], title, (2.3, 1.8))
    for operator, column, _ in columns:
        table = tables["failure_inputs"].filter(operator=operator)
        tests = tables["failure_tests"].filter(operator=operator)
        reason = too_few(tests, why.no_pairs(tables, operator))
        ranked = table.sort("gain", "feature", descending=[True, False])["feature"].unique(maintain_order=True).head(FEATURES)
        for axis, feature in zip(column, [*ranked, *[None] * (FEATURES - len(ranked))], strict=True):
            if reason or feature is None:
                drawing.absent(axis, reason or "no further feature")
            else:
                _shares(axis, table.filter(feature=feature), drawing.COLOURS[operator])
                axis.set_title(f"{operator}: " * (axis is column[0]) + feature)
    drawing.legend(figure)
    return figure


def _shares(axis: Axes, rows: pl.DataFrame, colour: str) -> None:
    """rows: of one feature of one operator."""
    shown = sorted(rows.select("value", "share", "failures", "cells").iter_rows(), key=lambda row: _natural(row[0]))
    values, shares, failures, cells = zip(*shown, strict=True)
    usual = sum(failures) / sum(cells)
    axis.barh(range(len(values)), shares, 0.8, color=colour)
    for y, (share, wrong, of) in enumerate(zip(shares, failures, cells, strict=True)):
        axis.text(max(share, usual), y, f" {wrong} of {of}", ha="left", va="center", fontsize=7)
    axis.axvline(usual, color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="all cells of the operator")
    said = "gain {:.2g} bits, {:.1g} by chance".format(*rows.select("gain", "gain_chance").row(0))
    axis.set(xlim=(0, 1.7 * max(shares)), axisbelow=True)
    axis.set_xlabel(said, fontsize=7)
    axis.locator_params(axis="x", nbins=4)
    axis.set_yticks(range(len(values)), [value.replace(", ", ",\n") for value in values])
    axis.invert_yaxis()


def _natural(value: str) -> tuple[int, str]:
    """Numbers and spans of them in order of size, words by the alphabet."""
    number = re.match(r"\d+", value)
    return (int(number[0]) if number else -1, value)
