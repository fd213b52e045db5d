"""Token sequences of different lengths as one array."""

import numpy as np


def pad(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens (sequences, longest) and lengths; causal attention never looks at what is to the right."""
    lengths = np.array([len(sequence) for sequence in sequences])
    tokens = np.zeros((len(sequences), lengths.max()), np.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    return tokens, lengths
