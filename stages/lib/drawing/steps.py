"""Draw axes of training steps, and lines over them."""

import numpy as np
import polars as pl

from stages.lib.drawing.drawing import Axes


def axis(panel: Axes, steps: list[int]) -> None:
    """Make x an axis of these steps, in rising order.

    Early steps lie close together, so distances are those of square roots.
    """
    last = max([*steps, 1])
    panel.set_xscale("function", functions=(_root, lambda x: np.sign(x) * x**2))
    panel.set(xlim=(-last / 500, 1.08 * last))
    panel.set_xticks(steps, labels(steps))


def floats(rows: pl.DataFrame, column: str) -> np.ndarray:
    """Return a column with NaN for null, at which a line breaks."""
    return rows[column].cast(pl.Float64).to_numpy()


def _root(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.sqrt(np.abs(x))


def labels(steps: list[int]) -> list[str]:
    """Return the labels of ticks, empty if there is no room beside the following label."""
    texts, free = [], np.inf  # where the room ends, as a share of the axis
    for step in reversed(steps):
        place = np.sqrt(step / max(steps[-1], 1))
        text = ""
        if place <= free:
            text, free = str(step), place - 0.07
        texts.append(text)
    return texts[::-1]
