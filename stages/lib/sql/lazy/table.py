"""Layered stores as lazy tables: a pyarrow dataset whose scans read only the chunks that a filter can touch.

DuckDB hands a registered dataset the columns and the filters of a query. Rows stream out one neuron at a time, so memory
stays at one chunk however large the stores are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from stages.lib.core.layered import LayerStore, widen
from stages.lib.sql.lazy.where import Piece, Pruner, StorePart

SUMS = "__sums"  # suffix of the table of sums (LayerSums)


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

    Columns: each part's constants, layer, neuron, the other axes, the stores' extra columns (null for -1), `measure`.
    keys: tables of some of the key columns; a row whose keys are missing from one of them need not be read.
    `reads` counts the chunks read so far, by this table and those narrowed from it.
    """

    def __init__(self, parts: list[StorePart], measure: str):
        self.parts, self.measure = parts, measure
        self.keys: Sequence[pa.Table] = ()
        self.reads: Counter = Counter()
        self.columns = _schema(parts[0], measure)
        self.pruner = Pruner(parts, self.columns)
        super().__init__(self.columns.empty_table())

    def neurons(self) -> dict[tuple[str | int, ...], int]:
        """How many neurons each layer of each part has: (its part's constants, layer) -> count."""
        return {
            (*part.constants.values(), layer): part.store.axes["neuron"]
            for part in self.parts
            for layer in part.store.layers
        }

    def narrowed(self, keys: Sequence[pa.Table]) -> "LayerTable":
        """The same table, reading only rows whose keys are in every one of `keys`."""
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
        wanted = (
            self.columns
            if columns is None
            else pa.schema([self.columns.field(name) for name in columns])
        )
        return Scan(wanted, self._batches(wanted, filter))

    def _batches(
        self, wanted: pa.Schema, condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        for part, layer, groups in self.pruner.touched(condition):
            allowed = self._allowed_neurons(part, layer)
            if allowed is not None and not allowed:
                continue
            blocks: dict[tuple[int, int, bool], _Block] = {}
            for pieces, exact in groups:
                kept = (
                    pieces
                    if allowed is None
                    else [piece for piece in pieces if piece[0] in allowed]
                )
                for rows, neurons in _reads(kept, part.store):
                    key = (rows.start, rows.stop, exact)
                    if key not in blocks:
                        blocks[key] = _Block(self, part, layer, rows, None if exact else condition)
                    yield from blocks[key].batches(neurons, wanted)

    def _allowed_neurons(self, part: StorePart, layer: int) -> set[int] | None:
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


class LayerSums(ds.InMemoryDataset):
    """One row per neuron of a table: its keys, how many rows__ it has, their total__, smallest__ and largest__ value."""

    def __init__(self, table: LayerTable):
        self.table = table
        keys = [
            field
            for field in table.columns
            if field.name in table.parts[0].constants or field.name in ("layer", "neuron")
        ]
        sums = [
            ("rows__", pa.int64()),
            ("total__", pa.float64()),
            ("smallest__", pa.float32()),
            ("largest__", pa.float32()),
        ]
        self.columns = pa.schema(keys + [pa.field(name, kind) for name, kind in sums])
        super().__init__(self.columns.empty_table())

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        **_: object,
    ) -> "Scan":
        """Return a stream as LayerTable's; a filter can name keys only."""
        wanted = (
            self.columns
            if columns is None
            else pa.schema([self.columns.field(name) for name in columns])
        )
        return Scan(wanted, self._batches(wanted, filter))

    def _batches(
        self, wanted: pa.Schema, condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        for part, layer, groups in self.table.pruner.touched(condition):
            for pieces, exact in groups:
                for rows, neurons in _reads(pieces, part.store):
                    values = part.store.read(layer, slice(neurons[0], neurons[-1] + 1), rows)
                    self.table.reads[part.store.path] += -(
                        -(rows.stop - rows.start) // part.store.chunk[1]
                    )
                    sums = pa.Table.from_pylist(
                        [
                            {**part.constants, "layer": layer, **_sums(n, values[n - neurons[0]])}
                            for n in neurons
                        ],
                        schema=self.columns,
                    )
                    yield from (
                        (sums if exact else sums.filter(condition))
                        .select(wanted.names)
                        .to_batches()
                    )


def _sums(neuron: int, values: np.ndarray) -> dict[str, float]:
    wide = widen(values.ravel())
    total = float(wide.sum(dtype=np.float64))
    return {
        "neuron": neuron,
        "rows__": wide.size,
        "total__": total,
        "smallest__": float(wide.min()),
        "largest__": float(wide.max()),
    }


class _Block:
    """Some rows of one layer: the columns that all of its neurons share, each made once, and a batch per neuron.

    A filter that speaks of neither neuron nor measure keeps the same rows for every neuron, so it is applied once.
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
        for i, name in enumerate(axes):
            self.make[name] = partial(_coordinate, lengths, i, rows.start if i == 0 else 0)
        for name, values in part.store.columns.items():
            self.make[name] = partial(_nullable, values[rows].ravel())
        self.places: np.ndarray | None = None  # of the rows kept, None for all
        self.condition = condition
        spoken_of = {
            name for name in table.columns.names if re.search(rf"\b{name}\b", str(condition))
        }
        self.needed = [name for name in table.columns.names if name in spoken_of]
        if condition is not None and not spoken_of & {"neuron", table.measure}:
            self._keep(condition)

    def batches(self, neurons: list[int], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """One batch per neuron, of the rows that satisfy the filter."""
        values = self.part.store.read(self.layer, slice(neurons[0], neurons[-1] + 1), self.rows)
        self.table.reads[self.part.store.path] += -(
            -(self.rows.stop - self.rows.start) // self.part.store.chunk[1]
        )
        for neuron in neurons:
            row = values[neuron - neurons[0]].ravel()
            if self.condition is None:
                yield self._batch(neuron, row, wanted.names)
            else:
                batch = self._batch(neuron, row, list(dict.fromkeys([*wanted.names, *self.needed])))
                yield from (
                    pa.Table.from_batches([batch])
                    .filter(self.condition)
                    .select(wanted.names)
                    .to_batches()
                )

    def _batch(self, neuron: int, values: np.ndarray, names: list[str]) -> pa.RecordBatch:
        kept = values if self.places is None else values[self.places]
        arrays = []
        for name in names:
            if name == self.table.measure:
                arrays.append(pa.array(widen(kept)))
            elif name == "neuron":
                arrays.append(pa.array(np.full(self.size, neuron, np.int32)))
            else:
                arrays.append(self._shared(name))
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self.table.columns.field(name) for name in names])
        )

    def _shared(self, name: str) -> pa.Array:
        if name not in self.made:
            array = self.make[name]()
            self.made[name] = (
                array if len(array) == self.size else array.take(pa.array(self.places))
            )
        return self.made[name]

    def _repeat(self, value: str | int, kind: pa.DataType) -> pa.Array:
        if pa.types.is_dictionary(kind):
            return pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(self.size, np.int8)), pa.array([value])
            )
        return pa.repeat(pa.scalar(value, kind), self.size)

    def _keep(self, condition: pc.Expression) -> None:
        """Applies the filter to the shared columns, once for all neurons."""
        columns = {name: self._shared(name) for name in self.needed} | {
            "place": pa.array(np.arange(self.size))
        }
        self.places = pa.table(columns).filter(condition)["place"].to_numpy()
        self.size, self.made, self.condition = len(self.places), {}, None


def _coordinate(lengths: list[int], axis: int, start: int) -> pa.Array:
    return pa.array((np.indices(lengths, np.int32)[axis] + np.int32(start)).ravel())


def _nullable(values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _schema(part: StorePart, measure: str) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.dictionary(pa.int8(), pa.string())) for name in part.constants]
        + [pa.field("layer", pa.int16()), pa.field("neuron", pa.int32())]
        + [pa.field(name, pa.int32()) for name in list(part.store.axes)[1:]]
        + [pa.field(name, pa.int32()) for name in part.store.columns]
        + [pa.field(measure, pa.float32())]
    )


def _reads(pieces: list[Piece], store: LayerStore) -> Iterator[tuple[slice, list[int]]]:
    """Groups (neuron, block) pairs into reads, each of one chunk of neurons and of consecutive blocks of rows."""
    size, step, rows = store.chunk[0], store.chunk[1], list(store.axes.values())[1]
    by_neuron = [
        (neuron, tuple(b for _, b in group))
        for neuron, group in groupby(pieces, key=lambda piece: piece[0])
    ]
    for (_, blocks), group in groupby(by_neuron, key=lambda item: (item[0] // size, item[1])):
        neurons = [neuron for neuron, _ in group]
        for _, run in groupby(enumerate(blocks), key=lambda pair: pair[1] - pair[0]):
            consecutive = [block for _, block in run]
            yield slice(consecutive[0] * step, min((consecutive[-1] + 1) * step, rows)), neurons
