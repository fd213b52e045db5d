"""Which chunks of layered stores a filter can touch, by Arrow's own simplification of filters.

Layers, groups of neurons and single (neuron, block of rows) pairs are fragments of a dataset that is never read, each
with a guarantee such as `layer = 1 and neuron = 7 and op1 in 0..74`; Arrow drops the fragments whose guarantee
contradicts a filter. Only what survives one level is looked at in the next.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from stages.lib.core.layered import LayerStore


@dataclass(frozen=True)
class StorePart:
    """One store of a table, and what is constant in it, such as its subject and operator."""

    store: LayerStore
    constants: Mapping[str, str]


class Guaranteed:
    """Places, each with a guarantee that all of its rows satisfy."""

    def __init__(self, guarantees: list[pc.Expression], schema: pa.Schema):
        paths = list(map(str, range(len(guarantees))))
        self.places = range(len(guarantees))
        self.fragments = ds.FileSystemDataset.from_paths(
            paths,
            schema=schema,
            format=ds.IpcFileFormat(),
            filesystem=fs.LocalFileSystem(),
            partitions=guarantees,
        )

    def touched(self, condition: pc.Expression | None) -> list[tuple[int, bool]]:
        """The places that may hold a row of the filter, and whether each of them holds nothing else."""
        if condition is None:
            return [(place, True) for place in self.places]
        doubtful = self._not_contradicting(~condition)
        return [
            (place, place not in doubtful) for place in sorted(self._not_contradicting(condition))
        ]

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
        self, condition: pc.Expression | None, exact: bool
    ) -> Iterator[tuple[list[Piece], bool]]:
        """Per group: the pieces to read, and whether all of their rows satisfy the filter. exact: whether all of the layer's do."""
        for group, group_exact in self.groups.touched(None if exact else condition):
            pieces = self._pieces(group)
            if group_exact:
                yield pieces, True
                continue
            if group not in self._single:
                self._single[group] = Guaranteed(
                    [self._guarantee_of(*piece) for piece in pieces], self.schema
                )
            kept = self._single[group].touched(condition)
            yield [pieces[place] for place, _ in kept], all(sure for _, sure in kept)

    @cached_property
    def groups(self) -> Guaranteed:
        starts = range(0, self.neurons, self.size)
        return Guaranteed(
            [
                self.guarantee & self._between("neuron", s, min(s + self.size, self.neurons) - 1)
                for s in starts
            ],
            self.schema,
        )

    def _pieces(self, group: int) -> list[Piece]:
        neurons = range(group * self.size, min((group + 1) * self.size, self.neurons))
        return list(product(neurons, self.blocks))

    def _guarantee_of(self, neuron: int, block: int) -> pc.Expression:
        first, last = block * self.step, min((block + 1) * self.step, self.rows) - 1
        return (
            self.guarantee
            & self._between("neuron", neuron, neuron)
            & self._between(self.row_axis, first, last)
        )

    def _between(self, name: str, first: str | int, last: str | int) -> pc.Expression:
        low, high = (pa.scalar(value, self.schema.field(name).type) for value in (first, last))
        return (
            pc.field(name) == low
            if first == last
            else (pc.field(name) >= low) & (pc.field(name) <= high)
        )


class Pruner:
    """The pieces of every layer of every part of a table."""

    def __init__(self, parts: list[StorePart], schema: pa.Schema):
        self.where = [(part, layer) for part in parts for layer in part.store.layers]
        self.layers = [LayerPruner(part, layer, schema) for part, layer in self.where]
        self.whole = Guaranteed([layer.guarantee for layer in self.layers], schema)

    def touched(
        self, condition: pc.Expression | None
    ) -> Iterator[tuple[StorePart, int, Iterator[tuple[list[Piece], bool]]]]:
        """Per layer that may hold a row of the filter: its part, its number, its groups of pieces as LayerPruner tells them."""
        for place, exact in self.whole.touched(condition):
            yield *self.where[place], self.layers[place].touched(condition, exact)
