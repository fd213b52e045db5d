"""Make chunks of HDF5 datasets as they are in the file: values, then their Fletcher32 checksum.

HDF5 computes checksums in one thread. Several threads compute them here, to the same bytes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stages.lib.core.compiled import compiled

MODULUS = 0xFFFF
PIECE = 1 << 16  # words, whose weighted sum fits in 64 bits


def sealed(values: np.ndarray) -> np.ndarray:
    """Return the bytes of chunks, each followed by its checksum, as 16-bit words.

    values: (chunks, neurons, …) float16 or float32, in C order.
    Returns (chunks, words of a chunk + 2) uint16.
    """
    words = values.reshape(len(values), -1).view(np.uint16)
    chunks = np.empty((len(words), words.shape[1] + 2), np.uint16)
    chunks[:, :-2] = words
    _seal(chunks)
    return chunks


@compiled()
def _seal(chunks):
    """Write the checksum of each chunk into its last two words.

    H5_checksum_fletcher32 adds up big-endian words modulo 65535. To swap the bytes of a word is to
    multiply it by 256 in that ring. So native words are added up, and the sums are swapped instead.
    """
    for number in range(len(chunks)):
        words = chunks[number, :-2]
        first = second = np.uint64(0)
        for start in range(0, len(words), PIECE):
            piece = words[start : start + PIECE]
            total, weighted = _added_up(piece)
            second = _reduced(second + first * np.uint64(len(piece)) + weighted)
            first = _reduced(first + total)
        chunks[number, -2] = _swapped(first)
        chunks[number, -1] = _swapped(second)


@compiled()
def _added_up(words):
    """Return the sum of words, and the sum of the sums of all their beginnings."""
    total = weighted = np.uint64(0)
    for i in range(len(words)):
        word = np.uint64(words[i])
        total += word
        weighted += word * np.uint32(len(words) - i)  # quicker than 64 bits
    return total, weighted


@compiled()
def _reduced(number):
    """Reduce a number modulo 65535, to 0 only if it is 0, as folded carries do."""
    if number == 0:
        return np.uint64(0)
    return (number - np.uint64(1)) % np.uint64(MODULUS) + np.uint64(1)


@compiled()
def _swapped(word):
    """Swap the two bytes of a word."""
    return np.uint16((word >> np.uint64(8)) | ((word & np.uint64(0xFF)) << np.uint64(8)))


def in_order(function: Callable, arguments: Iterable, threads: int) -> Iterator[Any]:
    """Yield function(argument) for each argument in order, computed by this many threads.

    At most `threads` + 1 results are kept in memory.
    """
    with ThreadPoolExecutor(threads) as pool:
        results: deque = deque()
        for argument in arguments:
            results.append(pool.submit(function, argument))
            if len(results) > threads:
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
