"""Draw a neuron's map for the page: 8 bits per cell, averaged blocks and a detail."""

from dataclasses import dataclass

import numpy as np

NO_CELL = -128
LARGEST = 127
COLOURED = 0.995  # quantile of the absolute values at which colours end


@dataclass(frozen=True, eq=False)
class Map:
    """Cells as int8: value · 127 / scale, or NO_CELL. Rows are op1, columns are op2.

    whole: means of blocks of cells; detail: a part of the map cell by cell; block: operands per row
    and column of `whole`; corner: operands of the detail's first cell, None without a detail;
    limit: the value at which colours end.
    """

    whole: np.ndarray
    detail: np.ndarray
    block: int
    corner: tuple[int, int] | None
    scale: float
    limit: float


def drawn(values: np.ndarray, valid: np.ndarray, side: int, detail: int) -> Map:
    """Return the map of a neuron.

    values, valid: activations and whether there is a cell, (op1, op2); side: most rows and columns
    of the whole; detail: rows and columns of the detail.
    """
    block = -(-max(values.shape) // side)
    means = averaged(values, valid, block)
    scale, limit = _colours(np.abs(values[valid]))
    if block == 1:
        return Map(_bytes(means, scale), np.zeros((0, 0), np.int8), 1, None, scale, limit)
    spread = np.kron(means, np.ones((block, block)))[: values.shape[0], : values.shape[1]]
    top, left = busiest(np.where(valid, (values - spread) ** 2, 0), detail)
    part = np.where(valid, values, np.nan)[top : top + detail, left : left + detail]
    return Map(_bytes(means, scale), _bytes(part, scale), block, (top, left), scale, limit)


def _colours(sizes: np.ndarray) -> tuple[float, float]:
    """Return the largest absolute value, 1 if all are 0, and the value at which colours end."""
    scale = float(sizes.max(initial=0)) or 1.0
    limit = float(np.quantile(sizes, COLOURED)) if sizes.size else 0.0
    return scale, limit or scale


def averaged(values: np.ndarray, valid: np.ndarray, block: int) -> np.ndarray:
    """Return the means of the cells in blocks of block · block; NaN for a block without cells."""
    rows, columns = values.shape
    size = -(-rows // block), -(-columns // block)
    sums = np.zeros((2, size[0] * block, size[1] * block))
    sums[0, :rows, :columns] = np.where(valid, values, 0)
    sums[1, :rows, :columns] = valid
    total, cells = sums.reshape(2, size[0], block, size[1], block).sum((2, 4))
    return np.divide(total, cells, out=np.full(total.shape, np.nan), where=cells > 0)


def busiest(lost: np.ndarray, side: int) -> tuple[int, int]:
    """Return the upper left cell of the grid that loses most by averaging.

    lost: of each cell, (op1, op2); side: of the grid, in cells.
    """
    summed = np.pad(lost, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside = summed[side:, side:] - summed[:-side, side:]
    inside = inside - summed[side:, :-side] + summed[:-side, :-side]
    if not inside.size:
        return 0, 0
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return int(top), int(left)


def _bytes(values: np.ndarray, scale: float) -> np.ndarray:
    scaled = np.round(np.nan_to_num(values) * (LARGEST / scale))
    return np.where(np.isnan(values), NO_CELL, scaled).astype(np.int8)
