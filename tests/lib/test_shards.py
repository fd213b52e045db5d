"""Check that shards of a store are read as one store by Python and by SQL, and never by half."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.lib.console import command
from stages.lib.core import shards
from stages.lib.core.hdf5_store import LayerWriter, StoreError, writing
from stages.lib.core.tables import TableError, write_table
from stages.lib.sql.database import Database, connect
from tests import storage

LAYERS, NEURONS, SIDE, BLOCK = [1, 4], 10, 7, 3
RESULTS = np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 11 - 1
SHAPE = (len(LAYERS), NEURONS, SIDE, SIDE)
VALUES = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float16)


def write(file: Path, layers: list[int], rows: slice, subject: str, operator: str) -> None:
    """Write some rows of VALUES of some layers."""
    values = VALUES[:, :, rows]
    axes = {"neuron": NEURONS, "op1": values.shape[2], "op2": SIDE}
    attributes = {"subject": subject, "operator": operator}
    chunk, columns = (4, BLOCK, SIDE), {"result": RESULTS[rows]}
    with writing(file) as opened:
        writer = LayerWriter(opened, layers, axes, "float16", chunk, attributes, columns=columns)
        for layer in layers:
            writer.write(layer, 0, values[LAYERS.index(layer)])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write stores of two operators: one file each for subject `whole`, shards for `apart`."""
    data = tmp_path_factory.mktemp("shards") / "data"
    folder, listed = data / "apart/store/activations", []
    for operator in ("add", "divide"):
        file = data / f"whole/store/activations/{operator}.h5"
        write(file, LAYERS, slice(None), "whole", operator)
        for layer, first in product(LAYERS, range(0, SIDE, BLOCK)):
            rows = range(first, min(first + BLOCK, SIDE))
            file = folder / shards.name_of(operator, layer, first)
            write(file, [layer], slice(rows.start, rows.stop), "apart", operator)
            listed.append(shards.listed(file, operator, layer, rows))
    write_table(pl.DataFrame(listed), folder / shards.MANIFEST)
    return data


def both(data: Path, operator: str) -> tuple[Any, Any]:
    """Return a store in one file, and the same in shards."""
    folder = "store/activations"
    whole = shards.store_of(data / "whole" / folder, operator)
    return whole, shards.store_of(data / "apart" / folder, operator)


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """Copy the folder of shards, for a test that damages it."""
    folder = "apart/store/activations"
    shutil.copytree(written / folder, tmp_path / "data" / folder)
    return tmp_path / "data" / folder


@given(layer=st.sampled_from(LAYERS), neurons=st.slices(NEURONS), rows=st.slices(SIDE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_part_is_that_of_one_file(written: Path, layer: int, neurons: slice, rows: slice):
    whole, apart = both(written, "add")
    neurons = slice(*neurons.indices(NEURONS)[:2])
    rows = slice(*rows.indices(SIDE)[:2])
    if neurons.start < neurons.stop and rows.start < rows.stop:
        assert np.array_equal(apart.read(layer, neurons, rows), whole.read(layer, neurons, rows))


@pytest.mark.parametrize("operator", ["add", "divide"])
def test_facts_are_those_of_one_file(written: Path, operator: str):
    whole, apart = both(written, operator)
    assert (apart.layers, apart.axes, apart.chunk) == (whole.layers, whole.axes, whole.chunk)
    assert {**apart.attributes, "subject": "whole"} == whole.attributes
    assert np.array_equal(apart.columns["result"], whole.columns["result"])


QUERIES = [
    """select operator, layer, neuron, op1, op2, result, activation
    from activations where subject = '{}'""",
    """select layer, neuron, avg(activation), max(activation)
    from activations where subject = '{}' and operator = 'add' group by all""",
    """select op1, op2, activation from activations
    where subject = '{}' and operator = 'divide' and layer = 4 and neuron = 7 and op1 > 4""",
    """select count(*), sum(activation) from activations
    where subject = '{}' and result is not null and op1 in (2, 3)""",
]


def rows_of(database: Database, query: str, subject: str) -> list[tuple]:
    rows = database.sql(query.format(subject)).fetchall()
    assert rows
    return sorted(rows)


@pytest.mark.parametrize("query", QUERIES)
def test_sql_reads_the_same_rows_from_both(written: Path, query: str):
    database = connect(written)
    assert rows_of(database, query, "apart") == rows_of(database, query, "whole")


@pytest.fixture(scope="module")
def bucket(written: Path) -> Iterator[storage.Bucket]:
    """Put the stores and a table in object storage, which this process can reach."""
    table = pl.DataFrame({"subject": ["apart", "whole"], "cells": [41, 43]})
    write_table(table, written / "store/accuracy.parquet")
    with storage.serving() as bucket, pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        bucket.upload(written, "data")
        yield bucket


@pytest.mark.parametrize("subject", ["apart", "whole"])
@pytest.mark.parametrize("query", [*QUERIES, "select * from accuracy where subject = '{}'"])
def test_sql_reads_object_storage_as_it_reads_a_folder(
    written: Path, bucket: storage.Bucket, query: str, subject: str
):
    remote, local = connect("s3://bag/data"), connect(written)
    assert remote.tables() == local.tables() == ["accuracy", "activations"]
    assert rows_of(remote, query, subject) == rows_of(local, query, subject)


READ = """
import sys, threading
from stages.lib.core.storage import place
from stages.lib.core.hdf5_store import LayerStore

LayerStore(place(sys.argv[1])).read(1, slice(None), slice(None))
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""


def test_no_python_thread_serves_reads_of_hdf5(bucket: storage.Bucket):
    """h5py reads under a lock: a thread that collects garbage of HDF5 would wait for ever."""
    store = "s3://bag/data/whole/store/activations/add.h5"
    subprocess.run([sys.executable, "-c", READ, store], check=True)


def test_a_cut_file_in_object_storage_is_named(written: Path, bucket: storage.Bucket):
    bucket.upload(written, "cut")
    damaged = bytearray((written / "store/accuracy.parquet").read_bytes())
    damaged[9] ^= 1
    shard = "cut/apart/store/activations/add/4/000003.h5"
    for key, content in (
        (shard, b"no store"),
        ("cut/store/accuracy.parquet", bytes(damaged)),
    ):
        bucket.client.put_object(Bucket="bag", Key=key, Body=content)
    database = connect("s3://bag/cut")
    with pytest.raises(StoreError, match=r"add/4/000003\.h5 has 8 bytes, not \d+"):
        database.sql("select count(*) from activations")
    with pytest.raises(TableError, match=r"s3://bag/cut/store/accuracy\.parquet is damaged"):
        database.sql("from accuracy")
    assert database.sql("select 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("s3://bag/nothing", r"there is no folder s3://bag/nothing\. Run bag"),
        ("s3://nobody/data", r"s3://nobody/data"),
        ("s4://bag/data", r"cannot access s4://bag/data: ValueError: .*s4"),
    ],
)
def test_storage_that_cannot_be_read_is_named(bucket: storage.Bucket, folder: str, message: str):
    with pytest.raises(SystemExit, match=f"^bag: .*{message}"):
        command.main(["--data", folder, "select 1"])


def test_a_map_is_read_from_the_shards_that_hold_it(written: Path):
    database = connect(written)
    cells = "subject = 'apart' and operator = 'add' and layer = 1 and neuron = 3"
    database.sql(f"select activation from activations where {cells}").fetchall()
    assert sum(database.lazy["activations"].reads.values()) == -(-SIDE // BLOCK)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, "is missing"),
        (cut_short, r"has \d+ bytes, not \d+"),
        (lambda file: file.write_bytes(b""), r"has 0 bytes, not \d+"),
    ],
)
def test_a_shard_that_is_not_whole_is_named_and_never_zeros(copy: Path, damage, problem: str):
    damage(copy / "divide/4/000003.h5")
    message = rf"divide/4/000003\.h5 {problem}; `bag verify --heal`"
    with pytest.raises(StoreError, match=message):
        shards.stores(copy)
    with pytest.raises(StoreError, match=r"divide/4/000003\.h5"):
        connect(copy.parents[2]).sql("select count(*) from activations")


def test_every_changed_byte_of_values_is_refused_by_name(copy: Path):
    file = copy / "add/1/000000.h5"
    clean = file.read_bytes()
    expected = shards.store_of(copy, "add").read(1, slice(None), slice(None))
    refused: list[str] = []
    for place in np.random.default_rng(0).integers(0, len(clean), 150).tolist():
        changed = bytearray(clean)
        changed[place] ^= 4
        file.write_bytes(changed)
        try:
            values = shards.store_of(copy, "add").read(1, slice(None), slice(None))
        except StoreError as error:
            refused.append(str(error))
        else:
            assert np.array_equal(values, expected)
    assert len(refused) > 20
    for message in refused:
        assert "add/1/000000.h5" in message


def test_a_changed_manifest_is_refused(copy: Path):
    manifest = copy / shards.MANIFEST
    changed = bytearray(manifest.read_bytes())
    changed[len(changed) // 3] ^= 1
    manifest.write_bytes(changed)
    with pytest.raises(TableError, match=r"manifest\.parquet is damaged"):
        shards.stores(copy)


IS_FOURTH = pl.col("layer") == 4


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (IS_FOURTH & (pl.col("first") == 3), "lacks rows of layer 4 of add before row 6"),
        (pl.col("first") == 0, "lacks rows of layer 1 of add before row 3"),
        (IS_FOURTH & (pl.col("first") == 6), "lacks the last rows of layer 4 of add"),
    ],
)
def test_a_layer_that_lacks_rows_is_refused(copy: Path, gone: pl.Expr, message: str):
    manifest = copy / shards.MANIFEST
    write_table(pl.read_parquet(manifest).filter(~gone), manifest)
    with pytest.raises(StoreError, match=message):
        shards.stores(copy)


def test_shards_that_no_manifest_lists_yet_are_no_rows(copy: Path):
    """Each shard counts its rows from 0, and does not tell where in the grid they are."""
    (copy / shards.MANIFEST).unlink()
    data = copy.parents[2]
    assert connect(data).tables() == []
    write(data / "whole/store/activations/add.h5", LAYERS, slice(None), "whole", "add")
    assert connect(data).sql("select distinct subject from activations").fetchall() == [("whole",)]


def test_shards_that_are_still_parts_are_no_rows(tmp_path: Path):
    for part in ("activations.parts/key/000000.h5", "predictions.parts/key/000000.0.h5"):
        write(tmp_path / "data/a/store" / part, LAYERS, slice(0, BLOCK), "a", "add")
    assert connect(tmp_path / "data").tables() == []
