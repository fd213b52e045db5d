"""Round arrays so that the last digits, which differ between kinds of processors, do not show."""

import numpy as np

STEPS = 2.0**16  # of a power of two above a row's largest value


def in_steps(rows: np.ndarray) -> np.ndarray:
    """Round each row of an array (rows, numbers) to steps of 2^-16 of its largest value.

    Rounding in float64, which differs between kinds of processors, then hardly ever shows.
    """
    step = np.exp2(np.frexp(np.abs(rows).max(-1, keepdims=True, initial=0))[1]) / STEPS
    return np.round(rows / step) * step + 0.0  # + 0.0: no -0.0
