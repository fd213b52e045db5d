"""Stores that are too large for one file: a file for each operator, layer and block of rows, and a manifest that says which there are.

    activations/manifest.parquet          operator, layer, first and number of rows, file, bytes, sha256
    activations/add/0/000000.h5           a store of one layer and some rows, as LayerWriter writes it

Read like one store each operator. A file that is missing or of another length is an error when the store is opened, one that is damaged
when it is read; virtual datasets of HDF5 would say zero.
"""

from functools import lru_cache
from hashlib import file_digest
from pathlib import Path

import numpy as np
import polars as pl

from stages.lib.core.files import way_out
from stages.lib.core.layered import LayerStore, StoreError
from stages.lib.core.tables import read_table

MANIFEST = "manifest.parquet"
OPEN = 64  # files at once


class ShardedStore(LayerStore):
    """One operator's shards as one store. path: the manifest's."""

    def __init__(self, path: Path, operator: str, shards: pl.DataFrame):
        self.path, self._shards = (
            path,
            dict[int, list[tuple[int, int, Path]]](),
        )  # layer -> first row, row behind the last, file
        for layer, first, rows, file, size in (
            shards.sort("layer", "first").select("layer", "first", "rows", "file", "bytes").rows()
        ):
            place = path.parent / file
            if not place.exists() or place.stat().st_size != size:
                what = (
                    f"has {place.stat().st_size} bytes, not {size}"
                    if place.exists()
                    else "is missing"
                )
                raise StoreError(f"{place} {what}; {way_out(place)}")
            before = self._shards.setdefault(layer, [])
            if first != (before[-1][1] if before else 0):
                raise StoreError(
                    f"{path} lacks rows of layer {layer} of {operator} in front of {first}; {way_out(path)}"
                )
            before.append((first, first + rows, place))
        self._opened = lru_cache(OPEN)(LayerStore)
        self.layers = sorted(self._shards)
        blocks = [self._opened(file) for *_, file in self._shards[self.layers[0]]]
        self.attributes, self.chunk = blocks[0].attributes, blocks[0].chunk
        self.axes = blocks[0].axes | {"op1": self._shards[self.layers[0]][-1][1]}
        self.columns = {
            name: np.concatenate([block.columns[name] for block in blocks])
            for name in blocks[0].columns
        }
        if short := [layer for layer, of in self._shards.items() if of[-1][1] != self.axes["op1"]]:
            raise StoreError(
                f"{path} lacks the last rows of layer {short[0]} of {operator}, or of the others; {way_out(path)}"
            )

    def read(self, layer: int, neurons: slice, rows: slice) -> np.ndarray:
        """Values (neurons, rows, …) in the store's own dtype. Raises StoreError on a damaged chunk."""
        start, stop, _ = rows.indices(self.axes["op1"])
        parts = [
            self._opened(file).read(
                layer, neurons, slice(max(start, first) - first, min(stop, behind) - first)
            )
            for first, behind, file in self._shards[layer]
            if first < stop and start < behind
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def stores(folder: Path) -> list[LayerStore]:
    """The stores in a folder, by the alphabet of their operators. Raises StoreError or TableError where one is damaged or not whole."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return [LayerStore(path) for path in sorted(folder.glob("*.h5"))]
    of = read_table(manifest).partition_by("operator", as_dict=True)
    return [ShardedStore(manifest, operator, of[operator,]) for (operator,) in sorted(of)]


def store_of(folder: Path, operator: str) -> LayerStore:
    """The store of one operator. Raises StoreError where there is none, and as `stores`."""
    found = [
        one for one in stores(folder) if one.attributes.get("operator", one.path.stem) == operator
    ]
    if not found:
        way_out = "`dvc repro` makes it, `make pull` fetches it"
        raise StoreError(f"{folder} has no store of {operator}; {way_out}")
    return found[0]


def name_of(operator: str, layer: int, first: int) -> str:
    """Where a shard lies below its manifest's folder."""
    return f"{operator}/{layer}/{first:06}.h5"


def listed(file: Path, operator: str, layer: int, rows: range) -> dict[str, str | int]:
    """The row of the manifest of a shard that is written."""
    with file.open("rb") as stream:
        sha256 = file_digest(stream, "sha256").hexdigest()
    return {"operator": operator, "layer": layer, "first": rows.start, "rows": len(rows), "file": name_of(operator, layer, rows.start),
            "bytes": file.stat().st_size, "sha256": sha256}  # fmt: skip
