"""A neuron's map for the page: small, 8 bits a cell, the whole of it averaged and a part of it as it is."""

from dataclasses import dataclass

import numpy as np

NO_CELL = -128
LARGEST = 127
COLOURED = 0.995  # share of cells whose value the colours tell apart; the few beyond it have the last colour


@dataclass(frozen=True, eq=False)
class Map:
    """Cells as int8: value · 127 / scale, NO_CELL where a prompt is none. Rows are op1, columns op2.

    block: operands per row and column of `whole`; corner: operands of the detail's first cell, None without a detail;
    limit: the value at which colours end.
    """

    whole: np.ndarray
    detail: np.ndarray
    block: int
    corner: tuple[int, int] | None
    scale: float
    limit: float


def drawn(values: np.ndarray, valid: np.ndarray, side: int, detail: int) -> Map:
    """values: float (op1, op2); side: most rows and columns of the whole; detail: those of the part shown as it is."""
    block = -(-max(values.shape) // side)
    means = averaged(values, valid, block)
    sizes = np.abs(values[valid])
    scale = float(sizes.max(initial=0)) or 1.0
    limit = float(np.quantile(sizes, COLOURED) or scale) if sizes.size else scale
    if block == 1:
        return Map(_bytes(means, scale), np.zeros((0, 0), np.int8), 1, None, scale, limit)
    spread = np.kron(means, np.ones((block, block)))[: values.shape[0], : values.shape[1]]
    top, left = busiest(np.where(valid, (values - spread) ** 2, 0), detail)
    part = np.where(valid, values, np.nan)[top : top + detail, left : left + detail]
    return Map(_bytes(means, scale), _bytes(part, scale), block, (top, left), scale, limit)


def averaged(values: np.ndarray, valid: np.ndarray, block: int) -> np.ndarray:
    """Means of the cells in squares of block · block; NaN where a square has none."""
    size = [-(-length // block) for length in values.shape]
    sums = np.zeros((2, size[0] * block, size[1] * block))
    sums[0, : values.shape[0], : values.shape[1]] = np.where(valid, values, 0)
    sums[1, : values.shape[0], : values.shape[1]] = valid
    total, cells = sums.reshape(2, size[0], block, size[1], block).sum((2, 4))
    return np.divide(total, cells, out=np.full(total.shape, np.nan), where=cells > 0)


def busiest(lost: np.ndarray, side: int) -> tuple[int, int]:
    """Upper left cell of the square of this side that has most of what averaging loses."""
    summed = np.pad(lost, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside = summed[side:, side:] - summed[:-side, side:] - summed[side:, :-side] + summed[:-side, :-side]
    if not inside.size:
        return 0, 0
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return int(top), int(left)


def _bytes(values: np.ndarray, scale: float) -> np.ndarray:
    return np.where(np.isnan(values), NO_CELL, np.round(np.nan_to_num(values) * (LARGEST / scale))).astype(np.int8)
