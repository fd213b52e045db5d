"""Layered stores as lazy tables: a pyarrow dataset whose scans read only the chunks that a filter can touch.

DuckDB hands a registered dataset the columns and the filters of a query. Rows stream out one neuron at a time, so memory
stays at one chunk however large the stores are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from stages.lib.pruning import Part, Piece, Pruner
from stages.lib.store import LayerStore, widen


class LayerTable(ds.InMemoryDataset):
    """The stores of one table as one dataset.

    Columns: each part's constants, layer, neuron, the other axes, the stores' extra columns (null for -1), `measure`.
    keys: tables of some of the key columns; a row whose keys are missing from one of them need not be read.
    `reads` counts the chunks read so far, by this table and those narrowed from it.
    """

    def __init__(self, parts: list[Part], measure: str):
        self.parts, self.measure = parts, measure
        self.keys: Sequence[pa.Table] = ()
        self.reads: Counter = Counter()
        self.columns = _schema(parts[0], measure)
        self.pruner = Pruner(parts, self.columns)
        super().__init__(self.columns.empty_table())

    def narrowed(self, keys: Sequence[pa.Table]) -> "LayerTable":
        """The same table, reading only rows whose keys are in every one of `keys`."""
        other = LayerTable(self.parts, self.measure)
        other.keys, other.reads, other.pruner = keys, self.reads, self.pruner
        return other

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object) -> ds.Scanner:
        """What DuckDB calls: a stream of the rows that satisfy `filter`, with these columns."""
        wanted = self.columns if columns is None else pa.schema([self.columns.field(name) for name in columns])
        return ds.Scanner.from_batches(self._batches(wanted, filter), schema=wanted)

    def _batches(self, wanted: pa.Schema, condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        for part, layer, groups in self.pruner.touched(condition):
            allowed = self._allowed_neurons(part, layer)
            if allowed is not None and not allowed:
                continue
            templates: dict[tuple[int, int], _Template] = {}
            for pieces, exact in groups:
                kept = pieces if allowed is None else [piece for piece in pieces if piece[0] in allowed]
                for rows, neurons in _reads(kept, part.store):
                    if (rows.start, rows.stop) not in templates:
                        templates[rows.start, rows.stop] = _Template(part, layer, rows, self)
                    yield from self._read(
                        part, layer, neurons, rows, templates[rows.start, rows.stop], wanted, None if exact else condition
                    )

    def _read(
        self,
        part: Part,
        layer: int,
        neurons: list[int],
        rows: slice,
        template: "_Template",
        wanted: pa.Schema,
        condition: pc.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        """One batch per neuron, of the rows that satisfy `condition`."""
        values = part.store.read(layer, slice(neurons[0], neurons[-1] + 1), rows)
        self.reads[part.store.path] += -(-(rows.stop - rows.start) // part.store.chunk[1])
        for neuron in neurons:
            if condition is None:
                yield template.batch(neuron, values[neuron - neurons[0]], wanted)
            else:
                batch = template.batch(neuron, values[neuron - neurons[0]], self.columns)
                yield from pa.Table.from_batches([batch]).filter(condition).select(wanted.names).to_batches()

    def _allowed_neurons(self, part: Part, layer: int) -> set[int] | None:
        """The neurons that `keys` leave in this layer, None for all."""
        allowed: set[int] | None = None
        for keys in self.keys:
            kept = keys
            for name, value in {**part.constants, "layer": layer}.items():
                if name in keys.column_names:
                    kept = kept.filter(pc.field(name) == value)
            if "neuron" in kept.column_names:
                neurons = set(kept["neuron"].to_pylist())
                allowed = neurons if allowed is None else allowed & neurons
            elif not len(kept):
                allowed = set()
        return allowed


class _Template:
    """The columns that all neurons of a block of rows share, each made once, when first asked for."""

    def __init__(self, part: Part, layer: int, rows: slice, table: LayerTable):
        axes = list(part.store.axes)[1:]
        lengths = [rows.stop - rows.start, *list(part.store.axes.values())[2:]]
        self.size, self.measure = int(np.prod(lengths)), table.measure
        self.made: dict[str, pa.Array] = {}
        constants = {**part.constants, "layer": layer}
        self.make: dict[str, Callable[[], pa.Array]] = {
            name: partial(pa.repeat, pa.scalar(value, table.columns.field(name).type), self.size) for name, value in constants.items()
        }
        for i, name in enumerate(axes):
            self.make[name] = partial(_coordinate, lengths, i, rows.start if i == 0 else 0)
        for name, values in part.store.columns.items():
            self.make[name] = partial(_nullable, values[rows].ravel())

    def batch(self, neuron: int, values: np.ndarray, wanted: pa.Schema) -> pa.RecordBatch:
        arrays = []
        for name in wanted.names:
            if name == self.measure:
                arrays.append(pa.array(widen(values.ravel())))
            elif name == "neuron":
                arrays.append(pa.array(np.full(self.size, neuron, np.int32)))
            else:
                if name not in self.made:
                    self.made[name] = self.make[name]()
                arrays.append(self.made[name])
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _coordinate(lengths: list[int], axis: int, start: int) -> pa.Array:
    return pa.array((np.indices(lengths, np.int16)[axis] + np.int16(start)).ravel())


def _nullable(values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _schema(part: Part, measure: str) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.string()) for name in part.constants]
        + [pa.field("layer", pa.int16()), pa.field("neuron", pa.int32())]
        + [pa.field(name, pa.int16()) for name in list(part.store.axes)[1:]]
        + [pa.field(name, pa.int32()) for name in part.store.columns]
        + [pa.field(measure, pa.float32())]
    )


def _reads(pieces: list[Piece], store: LayerStore) -> Iterator[tuple[slice, list[int]]]:
    """Groups (neuron, block) pairs into reads, each of one chunk of neurons and of consecutive blocks of rows."""
    size, step, rows = store.chunk[0], store.chunk[1], list(store.axes.values())[1]
    by_neuron = [(neuron, tuple(b for _, b in group)) for neuron, group in groupby(pieces, key=lambda piece: piece[0])]
    for (_, blocks), group in groupby(by_neuron, key=lambda item: (item[0] // size, item[1])):
        neurons = [neuron for neuron, _ in group]
        for _, run in groupby(enumerate(blocks), key=lambda pair: pair[1] - pair[0]):
            consecutive = [block for _, block in run]
            yield slice(consecutive[0] * step, min((consecutive[-1] + 1) * step, rows)), neurons
