"""Find the chunks of layered stores that a filter can touch, by Arrow's simplification of filters.

Layers, groups of neurons, and single pairs of a neuron and a block of rows are fragments of a
dataset that is never read. Each has a guarantee such as `layer = 1 and neuron = 7 and op1 in
0..74`. Arrow drops the fragments whose guarantee contradicts a filter. Each level looks only into
what is left of the level above.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from stages.lib.core.hdf5_store import LayerStore


@dataclass(frozen=True)
class StorePart:
    """One store of a table, and what is constant in it, such as its subject and operator."""

    store: LayerStore
    constants: Mapping[str, str]


class Guaranteed:
    """Numbered sets of rows, each with a guarantee that all of its rows satisfy."""

    def __init__(self, guarantees: list[pc.Expression], schema: pa.Schema):
        self.numbers = range(len(guarantees))
        self.fragments = ds.FileSystemDataset.from_paths(
            list(map(str, self.numbers)),
            schema=schema,
            format=ds.IpcFileFormat(),
            filesystem=fs.LocalFileSystem(),
            partitions=guarantees,
        )

    def touched(self, condition: pc.Expression | None) -> dict[int, bool]:
        """Return the sets that may hold a row of the filter, and whether all their rows are."""
        if condition is None:
            return dict.fromkeys(self.numbers, True)
        doubtful = self._not_contradicting(~condition)
        numbers = sorted(self._not_contradicting(condition))
        return {number: number not in doubtful for number in numbers}

    def _not_contradicting(self, condition: pc.Expression) -> set[int]:
        return {int(fragment.path) for fragment in self.fragments.get_fragments(condition)}


Piece = tuple[int, int]  # (neuron, block of rows)


class LayerPruner:
    """The pieces of one layer of one part, in groups of neurons that share a chunk."""

    def __init__(self, part: StorePart, layer: int, schema: pa.Schema):
        self.schema = schema
        (_, self.neurons), (self.row_axis, self.rows), *_ = part.store.axes.items()
        self.size, self.step = part.store.chunk[:2]
        self.blocks = range(-(-self.rows // self.step))
        self.guarantee = self._between("layer", layer, layer)
        for name, value in part.constants.items():
            self.guarantee &= self._between(name, value, value)
        self._single: dict[int, Guaranteed] = {}

    def touched(
        self,
        condition: pc.Expression | None,
        exact: bool,
    ) -> Iterator[tuple[list[Piece], bool]]:
        """Yield per group the pieces to read, and whether all of their rows satisfy the filter.

        exact: whether all rows of the layer satisfy it.
        """
        groups = self.groups.touched(None if exact else condition)
        for group, is_exact in groups.items():
            pieces = self._pieces(group)
            if is_exact:
                yield pieces, True
                continue
            if group not in self._single:
                guarantees = [self._guarantee(*piece) for piece in pieces]
                self._single[group] = Guaranteed(guarantees, self.schema)
            kept = self._single[group].touched(condition)
            yield list(map(pieces.__getitem__, kept)), all(kept.values())

    @cached_property
    def groups(self) -> Guaranteed:
        guarantees = []
        for start in range(0, self.neurons, self.size):
            last = min(start + self.size, self.neurons) - 1
            guarantees.append(self.guarantee & self._between("neuron", start, last))
        return Guaranteed(guarantees, self.schema)

    def _pieces(self, group: int) -> list[Piece]:
        neurons = range(group * self.size, min((group + 1) * self.size, self.neurons))
        return list(product(neurons, self.blocks))

    def _guarantee(self, neuron: int, block: int) -> pc.Expression:
        first, last = block * self.step, min((block + 1) * self.step, self.rows) - 1
        rows = self._between(self.row_axis, first, last)
        return self.guarantee & self._between("neuron", neuron, neuron) & rows

    def _between(self, name: str, first: str | int, last: str | int) -> pc.Expression:
        kind = self.schema.field(name).type
        low, high = pa.scalar(first, kind), pa.scalar(last, kind)
        if first == last:
            return pc.field(name) == low
        return (pc.field(name) >= low) & (pc.field(name) <= high)


# part, layer, and the groups of pieces of LayerPruner.touched
TouchedLayer = tuple[StorePart, int, Iterator[tuple[list[Piece], bool]]]


class Pruner:
    """The pieces of every layer of every part of a table."""

    def __init__(self, parts: list[StorePart], schema: pa.Schema):
        self.where: list[tuple[StorePart, int]] = []
        for part in parts:
            self.where += [(part, layer) for layer in part.store.layers]
        self.layers = [LayerPruner(part, layer, schema) for part, layer in self.where]
        self.whole = Guaranteed([layer.guarantee for layer in self.layers], schema)

    def touched(self, condition: pc.Expression | None) -> Iterator[TouchedLayer]:
        """Yield each layer that may hold a row of the filter."""
        for number, exact in self.whole.touched(condition).items():
            yield *self.where[number], self.layers[number].touched(condition, exact)
