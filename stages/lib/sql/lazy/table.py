"""Make layered stores lazy tables: datasets of pyarrow that read only what a filter can touch.

DuckDB hands a registered dataset the columns and the filters of a query. Rows stream out one
neuron at a time, so a scan takes the memory of one chunk, however large the stores are.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.sql.lazy.where import Piece, Pruner, StorePart

SUMS = "__sums"  # suffix of the table of sums (LayerSums)
SUMS_COLUMNS = {
    "rows__": pa.int64(),
    "total__": pa.float64(),
    "smallest__": pa.float32(),
    "largest__": pa.float32(),
}


class Scan:
    """A scan for DuckDB that makes each batch on demand, in the thread that asks for it.

    Not a pyarrow Scanner, which makes batches ahead in a thread of its own: after a LIMIT that
    thread would still run Python code while the interpreter shuts down.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]):
        self.schema, self.batches = schema, batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches)


class LayerTable(ds.InMemoryDataset):
    """The stores of one table as one dataset.

    Its columns are each part's constants, layer, neuron, the other axes, the stores' extra columns
    (null for -1), and the measure. keys: tables of some of the key columns; a row whose keys are
    missing from one of these tables need not be read. `reads` counts the chunks read so far, by
    this table and those narrowed from it.
    """

    def __init__(self, parts: list[StorePart], measure: str):
        self.parts, self.measure = parts, measure
        self.keys: Sequence[pa.Table] = ()
        self.reads: Counter = Counter()
        self.columns = _schema(parts[0], measure)
        self.pruner = Pruner(parts, self.columns)
        super().__init__(self.columns.empty_table())

    def neurons(self) -> dict[tuple[str | int, ...], int]:
        """Return the number of neurons by (each constant of a part, layer)."""
        numbers: dict[tuple[str | int, ...], int] = {}
        for part in self.parts:
            for layer in part.store.layers:
                numbers[(*part.constants.values(), layer)] = part.store.axes["neuron"]
        return numbers

    def narrowed(self, keys: Sequence[pa.Table]) -> "LayerTable":
        """Return this table without the rows whose keys are missing from one of `keys`."""
        other = LayerTable(self.parts, self.measure)
        other.keys, other.reads, other.pruner = keys, self.reads, self.pruner
        return other

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        **_: object,
    ) -> "Scan":
        """Return a stream of the rows that satisfy `filter`, with these columns, for DuckDB."""
        wanted = _selected(self.columns, columns)
        return Scan(wanted, self._batches(wanted, filter))

    def read(self, part: StorePart, layer: int, neurons: list[int], rows: slice) -> np.ndarray:
        """Read the values (neurons, rows, …) of neurons of one chunk, and count the chunks."""
        self.reads[part.store.path] += math.ceil((rows.stop - rows.start) / part.store.chunk[1])
        return part.store.read(layer, slice(neurons[0], neurons[-1] + 1), rows)

    def _batches(
        self,
        wanted: pa.Schema,
        condition: pc.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        for part, layer, groups in self.pruner.touched(condition):
            allowed = self._allowed_neurons(part, layer)
            if allowed == set():
                continue
            blocks: dict[tuple[int, int, bool], _Block] = {}
            for pieces, exact in groups:
                needed = pieces
                if allowed is not None:
                    needed = [piece for piece in pieces if piece[0] in allowed]
                for rows, neurons in _reads(needed, part.store):
                    key = (rows.start, rows.stop, exact)
                    if key not in blocks:
                        blocks[key] = _Block(self, part, layer, rows, None if exact else condition)
                    yield from blocks[key].batches(neurons, wanted)

    def _allowed_neurons(self, part: StorePart, layer: int) -> set[int] | None:
        """Return the neurons of this layer that `keys` leave, None for all."""
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


def _selected(schema: pa.Schema, names: list[str] | None) -> pa.Schema:
    """Return the columns with these names, all for None."""
    return schema if names is None else pa.schema(list(map(schema.field, names)))


class LayerSums(ds.InMemoryDataset):
    """A table's sums: one row per neuron.

    Its columns are the neuron's keys, its number of rows (rows__), and the sum (total__), smallest
    (smallest__) and largest value (largest__) of the measure.
    """

    def __init__(self, table: LayerTable):
        self.table = table
        keys = [*table.parts[0].constants, "layer", "neuron"]
        self.columns = _selected(table.columns, keys)
        for name, kind in SUMS_COLUMNS.items():
            self.columns = self.columns.append(pa.field(name, kind))
        super().__init__(self.columns.empty_table())

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        **_: object,
    ) -> "Scan":
        """Return a stream as LayerTable's; a filter can name keys only."""
        wanted = _selected(self.columns, columns)
        return Scan(wanted, self._batches(wanted, filter))

    def _batches(
        self,
        wanted: pa.Schema,
        condition: pc.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        for part, layer, groups in self.table.pruner.touched(condition):
            constants = {**part.constants, "layer": layer}
            for pieces, exact in groups:
                for rows, neurons in _reads(pieces, part.store):
                    values = self.table.read(part, layer, neurons, rows)
                    sums = [constants | _sums(n, values[n - neurons[0]]) for n in neurons]
                    batch = pa.Table.from_pylist(sums, schema=self.columns)
                    if not exact:
                        batch = batch.filter(condition)
                    yield from batch.select(wanted.names).to_batches()


def _sums(neuron: int, values: np.ndarray) -> dict[str, float]:
    wide = widen(values.ravel())
    return {
        "neuron": neuron,
        "rows__": wide.size,
        "total__": float(wide.sum(dtype=np.float64)),
        "smallest__": float(wide.min()),
        "largest__": float(wide.max()),
    }


class _Block:
    """Some rows of one layer. It makes the columns that all neurons share once, and batches.

    A filter that names neither neuron nor measure keeps the same rows of every neuron, so it is
    applied once.
    """

    def __init__(
        self,
        table: LayerTable,
        part: StorePart,
        layer: int,
        rows: slice,
        condition: pc.Expression | None,
    ):
        self.table, self.part, self.layer, self.rows = table, part, layer, rows
        axes = list(part.store.axes)[1:]
        lengths = [rows.stop - rows.start, *list(part.store.axes.values())[2:]]
        self.size = int(np.prod(lengths))
        self.made: dict[str, pa.Array] = {}
        self.make: dict[str, Callable[[], pa.Array]] = {}
        constants: dict[str, str | int] = {**part.constants, "layer": layer}
        for name, value in constants.items():
            self.make[name] = partial(self._repeat, value, table.columns.field(name).type)
        starts = [rows.start] + [0] * len(axes)
        for axis, name in enumerate(axes):
            self.make[name] = partial(_coordinate, lengths, axis, starts[axis])
        for name, values in part.store.columns.items():
            self.make[name] = partial(_nullable, values[rows].ravel())
        self.kept: np.ndarray | None = None  # numbers of the rows that are kept, None for all
        self.condition = condition
        text = str(condition)
        self.needed = [name for name in table.columns.names if re.search(rf"\b{name}\b", text)]
        if condition is not None and {"neuron", table.measure}.isdisjoint(self.needed):
            self._keep(condition)

    def batches(self, neurons: list[int], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows that satisfy the filter, neuron by neuron."""
        values = self.table.read(self.part, self.layer, neurons, self.rows)
        for neuron in neurons:
            row = values[neuron - neurons[0]].ravel()
            if self.condition is None:
                yield self._batch(neuron, row, wanted.names)
            else:
                names = list(dict.fromkeys([*wanted.names, *self.needed]))
                whole = pa.Table.from_batches([self._batch(neuron, row, names)])
                yield from whole.filter(self.condition).select(wanted.names).to_batches()

    def _batch(self, neuron: int, values: np.ndarray, names: list[str]) -> pa.RecordBatch:
        if self.kept is not None:
            values = values[self.kept]
        arrays = []
        for name in names:
            if name == self.table.measure:
                arrays.append(pa.array(widen(values)))
            elif name == "neuron":
                arrays.append(pa.array(np.full(self.size, neuron, np.int32)))
            else:
                arrays.append(self._shared(name))
        return pa.RecordBatch.from_arrays(arrays, schema=_selected(self.table.columns, names))

    def _shared(self, name: str) -> pa.Array:
        if name not in self.made:
            array = self.make[name]()
            if len(array) != self.size:
                array = array.take(pa.array(self.kept))
            self.made[name] = array
        return self.made[name]

    def _repeat(self, value: str | int, kind: pa.DataType) -> pa.Array:
        if pa.types.is_dictionary(kind):
            numbers = pa.array(np.zeros(self.size, np.int8))
            return pa.DictionaryArray.from_arrays(numbers, pa.array([value]))
        return pa.repeat(pa.scalar(value, kind), self.size)

    def _keep(self, condition: pc.Expression) -> None:
        """Apply the filter to the shared columns, once for all neurons."""
        columns = {name: self._shared(name) for name in self.needed}
        columns["row__"] = pa.array(np.arange(self.size))
        self.kept = pa.table(columns).filter(condition)["row__"].to_numpy()
        self.size, self.made, self.condition = len(self.kept), {}, None


def _coordinate(lengths: list[int], axis: int, start: int) -> pa.Array:
    return pa.array((np.indices(lengths, np.int32)[axis] + np.int32(start)).ravel())


def _nullable(values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _schema(part: StorePart, measure: str) -> pa.Schema:
    text = pa.dictionary(pa.int8(), pa.string())
    integers = [*list(part.store.axes)[1:], *part.store.columns]
    kinds = {
        **dict.fromkeys(part.constants, text),
        "layer": pa.int16(),
        "neuron": pa.int32(),
        **dict.fromkeys(integers, pa.int32()),
        measure: pa.float32(),
    }
    return pa.schema(list(kinds.items()))


def _reads(pieces: list[Piece], store: LayerStore) -> Iterator[tuple[slice, list[int]]]:
    """Group (neuron, block) pairs into reads: (rows, neurons).

    A read is of one chunk of neurons, and of consecutive blocks of rows.
    """
    size, step, rows = store.chunk[0], store.chunk[1], list(store.axes.values())[1]
    blocks: dict[int, list[int]] = {}  # by neuron
    for neuron, block in pieces:
        blocks.setdefault(neuron, []).append(block)
    alike = groupby(blocks, key=lambda neuron: (neuron // size, blocks[neuron]))
    for (_, of_each), group in alike:
        neurons = list(group)
        for start, stop in _runs(of_each):
            yield slice(start * step, min(stop * step, rows)), neurons


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into runs of consecutive ones; yield (first, last + 1) of each."""
    start = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield start, previous + 1
            start = number
        previous = number
    yield start, previous + 1
