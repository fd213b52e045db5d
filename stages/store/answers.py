"""Answers over a grid of operands, without the table of cells."""

from collections.abc import Sequence

import numpy as np

from stages.lib.core.vocabulary import Operator


def answers_on_grid(
    operator: Operator, operands: Sequence[int] | np.ndarray, largest: int
) -> np.ndarray:
    """Return the answers over a grid of operands, (op1, op2), -1 where there is none.

    There is none where the answer is negative or above `largest`, as in the table cells. Division
    is that of whole numbers from 1 on.
    """
    op1, op2 = np.meshgrid(operands, operands, indexing="ij")
    results = {
        "add": op1 + op2,
        "subtract": op1 - op2,
        "multiply": op1 * op2,
        "divide": np.where((op1 > 0) & (op2 > 0), op1 // np.maximum(op2, 1), -1),
    }[operator]
    results[(results > largest) | (results < 0)] = -1
    return results
