"""Read stores that are too large for one file: many shards and a manifest that lists them.

    activations/manifest.parquet          operator, layer, first and number of rows, file, bytes,
                                          sha256
    activations/add/0/000000.h5           a store of one layer and some rows, by LayerWriter

All shards of an operator read like one store. A shard that is missing or has another length is an
error when the store is opened, a damaged one when it is read. (HDF5's virtual datasets would read
missing shards as zeros.)
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import file_digest
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core.files import way_out
from stages.lib.core.hdf5_store import LayerStore, StoreError
from stages.lib.core.tables import read_table

MANIFEST = "manifest.parquet"
OPEN = 64  # files at once


@dataclass(frozen=True)
class Shard:
    """A file with the rows start to stop - 1 of one layer."""

    start: int
    stop: int
    path: Path


class ShardedStore(LayerStore):
    """One operator's shards as one store.

    path: the manifest; shards: its rows of this operator.
    """

    def __init__(self, path: Path, operator: str, shards: pl.DataFrame):
        self.path = path
        self._shards: dict[int, list[Shard]] = {}  # by layer, in the order of their rows
        rows = shards.sort("layer", "first").select("layer", "first", "rows", "file", "bytes")
        for layer, start, count, file, size in rows.iter_rows():
            shard = Shard(start, start + count, path.parent / file)
            _check_size(shard.path, size)
            earlier = self._shards.setdefault(layer, [])
            if start != (earlier[-1].stop if earlier else 0):
                problem = f"{path} lacks rows of layer {layer} of {operator} before row {start}"
                raise StoreError(f"{problem}; {way_out(path)}")
            earlier.append(shard)
        self._opened = lru_cache(OPEN)(LayerStore)
        self.layers = sorted(self._shards)
        shards_of_first = self._shards[self.layers[0]]
        blocks = [self._opened(shard.path) for shard in shards_of_first]
        self.attributes, self.chunk = blocks[0].attributes, blocks[0].chunk
        self.axes = blocks[0].axes | {"op1": shards_of_first[-1].stop}
        self.columns = {}
        for name in blocks[0].columns:
            self.columns[name] = np.concatenate([block.columns[name] for block in blocks])
        for layer, parts in self._shards.items():
            if parts[-1].stop != self.axes["op1"]:
                problem = f"{path} lacks the last rows of layer {layer} of {operator}"
                raise StoreError(f"{problem}, or of other layers; {way_out(path)}")

    def read(self, layer: int, neurons: slice, rows: slice) -> np.ndarray:
        """Return values (neurons, rows, …) in the store's dtype. Raises StoreError on damage."""
        start, stop, _ = rows.indices(self.axes["op1"])
        parts = []
        for shard in self._shards[layer]:
            if shard.start < stop and start < shard.stop:
                first, last = max(start, shard.start), min(stop, shard.stop)
                inside = slice(first - shard.start, last - shard.start)
                parts.append(self._opened(shard.path).read(layer, neurons, inside))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _check_size(file: Path, size: int) -> None:
    """Raise StoreError if a shard is missing or has another number of bytes."""
    if not file.exists():
        raise StoreError(f"{file} is missing; {way_out(file)}")
    actual = file.stat().st_size
    if actual != size:
        raise StoreError(f"{file} has {actual} bytes, not {size}; {way_out(file)}")


def stores(folder: Path) -> list[LayerStore]:
    """Return the stores in a folder, in the order of their operators' names.

    Raises StoreError or TableError if one is damaged or incomplete.
    """
    manifest = folder / MANIFEST
    if not manifest.exists():
        return list(map(LayerStore, sorted(folder.glob("*.h5"))))
    shards = read_table(manifest).partition_by("operator", as_dict=True)
    return [ShardedStore(manifest, str(key[0]), shards[key]) for key in sorted(shards)]


def store_of(folder: Path, operator: str) -> LayerStore:
    """Return the store of one operator. Raises StoreError if there is none, and as `stores`."""
    for store in stores(folder):
        if store.attributes.get("operator", store.path.stem) == operator:
            return store
    way_out = "`dvc repro` makes it, `make pull` fetches it"
    raise StoreError(f"{folder} has no store of {operator}; {way_out}")


def name_of(operator: str, layer: int, first: int) -> str:
    """Return the path of a shard, relative to its manifest's folder."""
    return f"{operator}/{layer}/{first:06}.h5"


def listed(file: Path, operator: str, layer: int, rows: range) -> dict[str, str | int]:
    """Return the manifest's row for a written shard."""
    with file.open("rb") as stream:
        sha256 = file_digest(stream, "sha256").hexdigest()
    return {
        "operator": operator,
        "layer": layer,
        "first": rows.start,
        "rows": len(rows),
        "file": name_of(operator, layer, rows.start),
        "bytes": file.stat().st_size,
        "sha256": sha256,
    }
