"""Read the residual stream at some positions of many prompts, at all layers in one forward pass.

    with residuals.read(checkpoint, sequences, positions, 1000, folder, "probes") as streams:
        vectors = streams.at(level=3, place=0)

Level l is the input of layer l; the last level is the output of the last layer. The vectors of all
levels may not fit into memory: 20,000 prompts of a model with 24 layers of width 896 take 7 GB. So
they are stored in a file, from which one level and place is read at a time.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from stages.lib.core import progress
from stages.lib.model import prefixes
from stages.lib.model.architecture import watched_streams
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.model.spread import beside


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residual streams in a file.

    shape: (levels, places, prompts, width); order: the prompts in the order of the file.
    """

    file: IO[bytes]
    shape: tuple[int, int, int, int]
    dtype: np.dtype
    order: np.ndarray

    def at(self, level: int, place: int) -> np.ndarray:
        """Return the vectors (prompts, width) of one level and place, in the order of the prompts.

        They are float64 if the model computes in float64, otherwise float32.
        """
        stored = np.empty(self.shape[2:], self.dtype)
        vectors = np.empty_like(stored)
        self._seek(level, place, 0)
        self.file.readinto(stored)  # type: ignore[attr-defined]
        vectors[self.order] = stored
        return vectors

    def write(self, level: int, first: int, vectors: np.ndarray) -> None:
        """Write vectors (prompts, places, width) of one level.

        first: index of the first prompt in the file. Raises FloatingPointError on NaN or infinity.
        """
        if not np.isfinite(vectors).all():
            way_out = "try a wider dtype for this subject in params.yaml"
            raise FloatingPointError(f"the model's residual stream is not finite; {way_out}")
        for place in range(vectors.shape[1]):
            self._seek(level, place, first)
            self.file.write(np.ascontiguousarray(vectors[:, place]).data)

    def _seek(self, level: int, place: int, prompt: int) -> None:
        _, places, prompts, width = self.shape
        number = (level * places + place) * prompts + prompt
        self.file.seek(number * width * self.dtype.itemsize)


@contextmanager
def read(
    checkpoint: Checkpoint,
    sequences: Sequence[list[int]],
    positions: np.ndarray,
    prompts_per_pass: int,
    folder: Path,
    title: str,
) -> Iterator[Residuals]:
    """Run prompts and yield their residual streams at some positions.

    sequences: the tokens of each prompt, of any lengths; positions: (prompts, places); folder: for
    the file, which has no name and exists only within the context; title: of the progress bar.
    Raises FloatingPointError if a stream is not finite.
    """
    lengths = np.array(list(map(len, sequences)), int)
    order = np.argsort(lengths, kind="stable")
    a, is_wide = checkpoint.architecture, checkpoint.model.dtype == torch.float64
    shape = (len(a.layers) + 1, positions.shape[1], len(sequences), a.width)
    dtype = np.dtype(np.float64 if is_wide else np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        streams = Residuals(file, shape, dtype, order)
        prefix = prefixes.find(
            checkpoint, sequences, int(positions.min(initial=lengths.max(initial=0)))
        )
        with progress.bar(total=len(order), desc=title, unit="prompt", leave=False) as bar:
            for first, count in _passes(prefix, lengths[order], prompts_per_pass):
                some = order[first : first + count]
                tokens = np.array([sequences[prompt] for prompt in some], np.int64)
                _run(streams, first, prefix, tokens, positions[some])
                bar.update(count)
        yield streams


def _passes(prefix: prefixes.Prefix, lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first prompt and the number of prompts of each pass. lengths: in rising order."""
    for length in np.unique(lengths):
        start, stop = np.searchsorted(lengths, [length, length + 1]).tolist()
        step = prefix.in_pass(int(length), most)
        for first in range(start, stop, step):
            yield first, min(step, stop - first)


def _run(
    streams: Residuals,
    first: int,
    prefix: prefixes.Prefix,
    tokens: np.ndarray,
    positions: np.ndarray,
) -> None:
    """Write the residual streams of one pass over tokens (prompts, positions)."""
    rows = torch.arange(len(tokens))[:, None]
    at = torch.from_numpy(positions.astype(np.int64) - prefix.length)

    def keep(level: int, stream: torch.Tensor) -> None:
        wanted = stream[beside(stream, rows, at)]  # (prompts, places, width)
        exact = wanted if wanted.dtype == torch.float64 else wanted.float()
        streams.write(level, first, exact.cpu().numpy().astype(streams.dtype, copy=False))

    with watched_streams(prefix.checkpoint.architecture, keep):
        prefix.run(prefix.checkpoint.model.base_model, tokens)
