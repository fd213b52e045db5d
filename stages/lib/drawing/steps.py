"""Axes of training steps, and lines over them."""

import numpy as np
import polars as pl

from stages.lib.drawing.drawing import Axes


def axis(of: Axes, steps: list[int]) -> None:
    """Makes x an axis of these steps, in order; early ones lie close together, so distances are of their square roots."""
    most = max([*steps, 1])
    of.set_xscale("function", functions=(_root, lambda x: np.sign(x) * x**2))
    of.set(xlim=(-most / 500, 1.08 * most))
    of.set_xticks(steps, labels(steps))


def floats(rows: pl.DataFrame, column: str) -> np.ndarray:
    """A column, NaN where it is null, at which a line breaks."""
    return rows[column].cast(pl.Float64).to_numpy()


def _root(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.sqrt(np.abs(x))


def labels(steps: list[int]) -> list[str]:
    """Labels of ticks, from the last on; none for one that has no room beside the next."""
    found, free = [], np.inf
    for step in reversed(steps):
        place = np.sqrt(step / max(steps[-1], 1))
        found.append(str(step) if place <= free else "")
        free = place - 0.07 if found[-1] else free
    return found[::-1]
