"""Turn token sequences of different lengths into one array."""

import numpy as np


def pad(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (sequences, longest), padded on the right, and lengths (sequences,).

    Causal attention never looks to the right, so the padding has no effect.
    """
    lengths = np.array(list(map(len, sequences)))
    tokens = np.zeros((len(sequences), lengths.max()), np.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    return tokens, lengths
