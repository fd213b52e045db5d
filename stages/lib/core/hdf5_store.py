"""Read and write HDF5 stores: activations, value logits, mean outputs. The one importer of h5py.

A layered store has a dataset /layers/<layer> for each layer that it keeps:
* activations are (neuron, op1, op2), with the answers of the grid's prompts in /columns/result;
* value logits are (neuron, number).
A chunk holds some neurons, some rows and all columns. So blocks of rows can be written, and one
neuron's whole map be read, without touching much else. Every chunk has a Fletcher32 checksum. A
store is written under a temporary name and renamed when complete; equal content is equal bytes.
"""

import errno
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import h5py
import numpy as np

from stages.lib.core import environment
from stages.lib.core.files import full, is_full, replacing, way_out
from stages.lib.core.storage import pieces

# errors of permissions, locks, limits and disks, after which a file's bytes may still be right
REFUSED = {
    errno.EACCES, errno.EPERM, errno.EAGAIN, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
LEAST = 1 << 20  # bytes free, below which no store is begun
AT_ONCE = 1 << 21  # bytes of chunks that a thread prepares at once


class StoreError(RuntimeError):
    """A store that is damaged, or a value that a store cannot hold."""


def _need_space(path: Path, size: int) -> None:
    """Raise StoreError if the disk has no room for a file of this size.

    HDF5 cannot go on after a write has failed. So the check precedes the first write.
    """
    free = shutil.disk_usage(path.parent).free
    if free < size:
        needed = f"{path} takes {size / 1e6:,.0f} MB, and its disk has {free / 1e6:,.0f} MB free"
        way_out = "free some space, or move the project to a larger disk"
        raise StoreError(f"No space left on device: {needed}; {way_out}")


@contextmanager
def writing(path: Path, shared: bool = False) -> Iterator[h5py.File]:
    """Yield an HDF5 file with a temporary name, renamed to `path` after the block.

    It is removed if the block raises. shared: several processes may write it at once (see
    files.replacing).
    """
    with replacing(path, shared) as partial:
        _need_space(partial, LEAST)
        try:
            with h5py.File(partial, "w", libver=("v110", "v110"), locking=False) as file:
                yield file
        except Exception as error:
            if is_full(error):
                _end(full(path), partial)
            raise
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())


def _end(message: str, partial: Path) -> NoReturn:
    """Remove a file, and end this process as SystemExit does, but at once.

    HDF5 still holds what it could not write, and would crash the process at exit.
    """
    partial.unlink(missing_ok=True)
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


def _opened(path: Path) -> h5py.File:
    """Open a store for reading, without a lock, since many shared file systems have no locks.

    None is needed: a store gets its name once it is whole, and does not change afterwards.
    """
    return h5py.File(pieces(path), "r", locking=False)


class LayerWriter:
    """Writes a layered store: for each layer, a number per neuron and coordinate of the other axes.

    axes: name -> length, "neuron" first; chunk: lengths along the same axes; attributes:
    provenance, stored on the file; columns: arrays over the axes after "neuron", which describe
    their coordinates, with -1 for none.
    """

    def __init__(
        self,
        file: h5py.File,
        layers: list[int],
        axes: Mapping[str, int],
        dtype: str,
        chunk: tuple[int, ...],
        attributes: Mapping[str, str],
        *,
        columns: Mapping[str, np.ndarray] | None = None,
    ):
        self.dtype = np.dtype(dtype)
        shape = tuple(axes.values())
        size = len(layers) * math.prod(shape) * self.dtype.itemsize
        _need_space(Path(file.filename), size + LEAST)
        file.attrs.update({**attributes, "axes": ", ".join(axes), "dtype": dtype})
        for name, column in (columns or {}).items():
            data = column.astype(np.int32)
            file.create_dataset(f"columns/{name}", data=data, chunks=column.shape, fletcher32=True)
        chunks = tuple(map(min, chunk, shape))
        self.datasets: dict[int, h5py.Dataset] = {}
        for layer in layers:
            self.datasets[layer] = file.create_dataset(
                f"layers/{layer}",
                shape,
                self.dtype,
                chunks=chunks,
                fletcher32=True,
            )
        self.partly_written: set[int] = set()  # layers

    def write(self, layer: int, first: int, block: np.ndarray) -> None:
        """Write the rows of a layer from `first` on; block: (neurons, some rows, …).

        Raises StoreError on a value that does not fit into the store's dtype.
        """
        with np.errstate(over="ignore"):
            narrow = block.astype(self.dtype, copy=False)
        start, stop = self._direct(layer, first, narrow)
        self._write_cached(layer, first, narrow[:start], 0)
        if start < stop:
            self._write_direct(layer, first, narrow[start:stop], start)
            self._write_cached(layer, first, narrow[stop:], stop)

    def _direct(self, layer: int, first: int, block: np.ndarray) -> tuple[int, int]:
        """Return the range of a block's neurons whose chunks are written past HDF5's cache.

        The cache decides the order of chunks in the file. To keep this order, the first and the
        last chunks of a block, as many as the cache holds, still go through the cache. So does the
        whole layer once a chunk was written in parts.
        """
        dataset = self.datasets[layer]
        neurons, *rest = dataset.chunks
        whole = [*block.shape[1:]] == rest and first % rest[0] == 0 and len(block) % neurons == 0
        _, size, _ = dataset.id.get_access_plist().get_chunk_cache()
        cached = size // (math.prod(dataset.chunks) * self.dtype.itemsize) + 1
        start, stop = cached * neurons, len(block) - cached * neurons
        if not whole:
            self.partly_written.add(layer)
        direct = start < stop and layer not in self.partly_written
        if not direct:
            return len(block), len(block)
        return start, stop

    def _write_cached(self, layer: int, first: int, values: np.ndarray, neuron: int) -> None:
        """Write the values of neurons from `neuron` on through HDF5's cache."""
        _need_finite(layer, values)
        rows = slice(first, first + values.shape[1])
        self.datasets[layer][neuron : neuron + len(values), rows] = values

    def _write_direct(self, layer: int, first: int, values: np.ndarray, neuron: int) -> None:
        """Write whole chunks, those of neurons from `neuron` on; threads compute the checksums."""
        from stages.lib.core import chunks  # imports numba, which readers need not

        dataset = self.datasets[layer]
        shape = dataset.chunks
        every = np.ascontiguousarray(values).reshape(-1, *shape)
        at_once = max(1, AT_ONCE // every[0].nbytes)
        batches = (every[i : i + at_once] for i in range(0, len(every), at_once))

        def sealed(batch: np.ndarray) -> np.ndarray:
            _need_finite(layer, batch)
            return chunks.sealed(batch)

        dataset.id.flush()
        others = [0] * (len(shape) - 2)
        for batch in chunks.in_order(sealed, batches, environment.threads()):
            for chunk in batch:
                dataset.id.write_direct_chunk((neuron, first, *others), chunk)
                neuron += shape[0]


class LayerStore:
    """An open layered store.

    axes: name -> length; layers: those that it keeps; chunk: lengths along the axes; columns: as
    written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self.file = _opened(path)
            self.attributes = dict(self.file.attrs)
            self.layers = sorted(map(int, self.file["layers"]))
            dataset = self.file[f"layers/{self.layers[0]}"]
            axes = self.attributes["axes"].split(", ")
            self.axes: dict[str, int] = dict(zip(axes, dataset.shape, strict=True))
            self.chunk: tuple[int, ...] = tuple(dataset.chunks)
            columns = self.file.get("columns", {})
            self.columns: dict[str, np.ndarray] = {name: columns[name][:] for name in columns}
        except Exception as error:  # h5py raises anything on damaged metadata
            raise _damaged(path, error) from None

    def read(self, layer: int, neurons: slice, rows: slice) -> np.ndarray:
        """Return values (neurons, rows, …) in the store's dtype. Raises StoreError on damage."""
        try:
            return self.file[f"layers/{layer}"][neurons, rows]
        except Exception as error:  # as above
            raise _damaged(self.path, error, f"dataset layers/{layer}: ") from None


def _need_finite(layer: int, values: np.ndarray) -> None:
    """Raise StoreError if a value is infinite or NaN."""
    if not _all_finite(values):
        problem = f"layer {layer}: an activation is NaN, infinite or too large for {values.dtype}"
        if values.dtype == np.float16:
            problem += "; set dump.store_dtype: float32 in stages/store/params.yaml"
        raise StoreError(problem)


def _all_finite(values: np.ndarray) -> bool:
    """Return whether no value is infinite or NaN.

    For float16, the bits of the exponent tell this ten times faster than numpy's isfinite.
    """
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    return all(int((part.view(np.uint16) & 0x7FFF).max()) < 0x7C00 for part in values if part.size)


def widen(values: np.ndarray) -> np.ndarray:
    """Convert finite float16 (or float32) values to float32, exactly.

    This is twice as fast as numpy's conversion of float16.
    """
    if values.dtype != np.float16:
        return values.astype(np.float32, copy=False)
    bits = values.view(np.int16).astype(np.int32)
    bits <<= 13  # mantissa and exponent to their new places; the exponent is still too small by 112
    bits &= np.int32(-0x70002000)  # 0x8fffe000: the sign stays at the top, its copies below go
    wide = bits.view(np.float32)
    wide *= np.float32(2.0**112)
    return wide


def write_array(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, str],
    shared: bool = False,
) -> None:
    """Write a store of a few arrays, each under its name. shared: see `writing`."""
    write_arrays(path, arrays.items(), attributes, shared)


def write_arrays(
    path: Path,
    arrays: Iterable[tuple[str, np.ndarray]],
    attributes: Mapping[str, str],
    shared: bool = False,
) -> None:
    """Write a store of arrays, each under its name, taken one after another."""
    with writing(path, shared) as file:
        file.attrs.update(attributes)
        for name, array in arrays:
            chunks = array.shape if array.size else None
            file.create_dataset(name, data=array, chunks=chunks, fletcher32=bool(array.size))


def read_array(path: Path, name: str) -> np.ndarray:
    """Return one array of such a store. Raises StoreError if it is missing or damaged."""
    try:
        with _opened(path) as file:
            return file[name][:]
    except Exception as error:  # as above
        raise _damaged(path, error, f"dataset {name}: ") from None


def read_shape(path: Path, name: str) -> tuple[int, ...]:
    """Return the shape of one array of such a store. Raises StoreError as `read_array` does."""
    try:
        with _opened(path) as file:
            return file[name].shape
    except Exception as error:  # as above
        raise _damaged(path, error, f"dataset {name}: ") from None


def read_attributes(path: Path) -> dict[str, str]:
    """Return the attributes of a store. Raises StoreError if it is missing or damaged."""
    try:
        with _opened(path) as file:
            return dict(file.attrs)
    except Exception as error:  # as above
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception, part: str = "") -> StoreError:
    """Return the error for a store that cannot be read."""
    # not asked of object storage, where the same request may fail again
    if isinstance(path, Path) and not path.exists():
        return StoreError(f"there is no store {path}; `dvc repro` makes it, `make pull` fetches it")
    if isinstance(error, OSError) and error.errno in REFUSED:
        problem = f"{path} cannot be read, but need not be damaged: {error}"
        return StoreError(f"{problem}; check its permissions and its file system")
    problem = f"{part}{type(error).__name__}: {error}"
    return StoreError(f"{path} is damaged, incomplete or not a store ({problem}); {way_out(path)}")
