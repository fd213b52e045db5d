"""Shards of a store are one store: read alike by Python and by SQL, and never by half."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.lib.console import command
from stages.lib.core import shards
from stages.lib.core.hdf5_store import LayerWriter, StoreError, writing
from stages.lib.core.tables import TableError, write_table
from stages.lib.sql.database import connect
from tests import storage

LAYERS, NEURONS, SIDE, BLOCK = [1, 4], 10, 7, 3
RESULTS = np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 11 - 1
VALUES = (
    np.random.default_rng(0).standard_normal((len(LAYERS), NEURONS, SIDE, SIDE)).astype(np.float16)
)


def write(file: Path, layers: list[int], rows: slice, subject: str, operator: str) -> None:
    values = VALUES[:, :, rows]
    axes = {"neuron": NEURONS, "op1": values.shape[2], "op2": SIDE}
    with writing(file) as opened:
        of = {"subject": subject, "operator": operator}
        writer = LayerWriter(
            opened, layers, axes, "float16", (4, BLOCK, SIDE), of, columns={"result": RESULTS[rows]}
        )
        for layer in layers:
            writer.write(layer, 0, values[LAYERS.index(layer)])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same stores of two operators, of the subject `whole` in a file each, of `apart` in shards."""
    data = tmp_path_factory.mktemp("shards") / "data"
    listed = []
    for operator in ("add", "divide"):
        write(
            data / f"whole/store/activations/{operator}.h5", LAYERS, slice(None), "whole", operator
        )
        for layer in LAYERS:
            for first in range(0, SIDE, BLOCK):
                rows = range(first, min(first + BLOCK, SIDE))
                file = data / "apart/store/activations" / shards.name_of(operator, layer, first)
                write(file, [layer], slice(rows.start, rows.stop), "apart", operator)
                listed.append(shards.listed(file, operator, layer, rows))
    write_table(pl.DataFrame(listed), data / "apart/store/activations" / shards.MANIFEST)
    return data


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """A copy of the shards' folder, to be damaged."""
    for file in written.rglob("apart/**/*"):
        if file.is_file():
            place = tmp_path / "data" / file.relative_to(written)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    return tmp_path / "data/apart/store/activations"


@given(layer=st.sampled_from(LAYERS), neurons=st.slices(NEURONS), rows=st.slices(SIDE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_part_of_them_is_that_of_one_file(
    written: Path, layer: int, neurons: slice, rows: slice
):
    whole, apart = (
        shards.store_of(written / subject / "store/activations", "add")
        for subject in ("whole", "apart")
    )
    neurons, rows = (slice(*s.indices(n)[:2]) for s, n in ((neurons, NEURONS), (rows, SIDE)))
    if neurons.start < neurons.stop and rows.start < rows.stop:
        assert np.array_equal(apart.read(layer, neurons, rows), whole.read(layer, neurons, rows))


def test_what_is_known_of_them_is_that_of_one_file(written: Path):
    for operator in ("add", "divide"):
        whole, apart = (
            shards.store_of(written / subject / "store/activations", operator)
            for subject in ("whole", "apart")
        )
        assert (apart.layers, apart.axes, apart.chunk) == (whole.layers, whole.axes, whole.chunk)
        assert {**apart.attributes, "subject": "whole"} == whole.attributes
        assert np.array_equal(apart.columns["result"], whole.columns["result"])


QUERIES = [
    "select operator, layer, neuron, op1, op2, result, activation from activations where subject = '{}'",
    "select layer, neuron, avg(activation), max(activation) from activations where subject = '{}' and operator = 'add' group by all",
    "select op1, op2, activation from activations where subject = '{}' and operator = 'divide' and layer = 4 and neuron = 7 and op1 > 4",
    "select count(*), sum(activation) from activations where subject = '{}' and result is not null and op1 in (2, 3)",
]


@pytest.mark.parametrize("query", QUERIES)
def test_sql_reads_both_alike(written: Path, query: str):
    database = connect(written)
    assert sorted(database.sql(query.format("apart")).fetchall()) == sorted(
        database.sql(query.format("whole")).fetchall()
    )


@pytest.fixture(scope="module")
def bucket(written: Path) -> Iterator[storage.Bucket]:
    """The same stores and a table in object storage, of which this process then knows."""
    write_table(
        pl.DataFrame({"subject": ["apart", "whole"], "cells": [41, 43]}),
        written / "store/accuracy.parquet",
    )
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
    there, here = connect("s3://bag/data"), connect(written)
    assert there.tables() == here.tables() == ["accuracy", "activations"]
    assert sorted(there.sql(query.format(subject)).fetchall()) == sorted(
        here.sql(query.format(subject)).fetchall()
    )


READ = """
import sys, threading
from stages.lib.core.storage import place
from stages.lib.core.hdf5_store import LayerStore

LayerStore(place(sys.argv[1])).read(1, slice(None), slice(None))
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""


def test_no_thread_of_python_answers_a_reading_of_hdf5(bucket: storage.Bucket):
    """Else both wait for ever where that thread collects garbage of HDF5, since h5py reads under a lock."""
    subprocess.run(
        [sys.executable, "-c", READ, "s3://bag/data/whole/store/activations/add.h5"], check=True
    )


def test_what_is_not_whole_in_object_storage_is_named(written: Path, bucket: storage.Bucket):
    bucket.upload(written, "cut")
    bucket.client.put_object(
        Bucket="bag", Key="cut/apart/store/activations/add/4/000003.h5", Body=b"no store"
    )
    whole = (written / "store/accuracy.parquet").read_bytes()
    bucket.client.put_object(
        Bucket="bag",
        Key="cut/store/accuracy.parquet",
        Body=whole[:9] + bytes([whole[9] ^ 1]) + whole[10:],
    )
    database = connect("s3://bag/cut")
    with pytest.raises(StoreError, match=r"add/4/000003\.h5 has 8 bytes, not \d+"):
        database.sql("select count(*) from activations")
    with pytest.raises(TableError, match=r"s3://bag/cut/store/accuracy\.parquet is damaged"):
        database.sql("from accuracy")
    assert database.sql("select 1").fetchall() == [(1,)]


@pytest.mark.parametrize(("folder", "said"), [
    ("s3://bag/nothing", r"there is no folder s3://bag/nothing\. Run bag"),
    ("s3://nobody/data", r"s3://nobody/data"),
    ("s4://bag/data", r"cannot access s4://bag/data: ValueError: .*s4"),
])  # fmt: skip
def test_storage_that_cannot_be_read_is_a_sentence(bucket: storage.Bucket, folder: str, said: str):
    with pytest.raises(SystemExit, match=f"^bag: .*{said}"):
        command.main(["--data", folder, "select 1"])


def test_a_map_is_read_from_the_shards_that_hold_it(written: Path):
    database = connect(written)
    database.sql(
        "select activation from activations where subject = 'apart' and operator = 'add' and layer = 1 and neuron = 3"
    ).fetchall()
    assert sum(database.lazy["activations"].reads.values()) == -(-SIDE // BLOCK)


@pytest.mark.parametrize(("damage", "said"), [
    (lambda file: file.unlink(), "is missing"),
    (lambda file: file.write_bytes(file.read_bytes()[:-9]), r"has \d+ bytes, not \d+"),
    (lambda file: file.write_bytes(b""), r"has 0 bytes, not \d+"),
])  # fmt: skip
def test_a_shard_that_is_not_whole_is_named_and_never_zeros(copy: Path, damage, said: str):
    damage(copy / "divide/4/000003.h5")
    with pytest.raises(StoreError, match=rf"divide/4/000003\.h5 {said}; `bag verify --heal`"):
        shards.stores(copy)
    with pytest.raises(StoreError, match=r"divide/4/000003\.h5"):
        connect(copy.parents[2]).sql("select count(*) from activations")


def test_every_changed_byte_of_values_is_refused_by_name(copy: Path):
    file = copy / "add/1/000000.h5"
    clean = file.read_bytes()
    expected = shards.store_of(copy, "add").read(1, slice(None), slice(None))
    refused = []
    for place in np.random.default_rng(0).integers(0, len(clean), 150).tolist():
        file.write_bytes(clean[:place] + bytes([clean[place] ^ 4]) + clean[place + 1 :])
        try:
            found = shards.store_of(copy, "add").read(1, slice(None), slice(None))
        except StoreError as error:
            refused.append(str(error))
        else:
            assert np.array_equal(found, expected)
    assert len(refused) > 20
    assert all("add/1/000000.h5" in said for said in refused)


def test_a_changed_manifest_is_refused(copy: Path):
    manifest = copy / shards.MANIFEST
    changed = bytearray(manifest.read_bytes())
    changed[len(changed) // 3] ^= 1
    manifest.write_bytes(changed)
    with pytest.raises(TableError, match=r"manifest\.parquet is damaged"):
        shards.stores(copy)


@pytest.mark.parametrize(("gone", "said"), [
    ((pl.col("layer") == 4) & (pl.col("first") == 3), "lacks rows of layer 4 of add before row 6"),
    (pl.col("first") == 0, "lacks rows of layer 1 of add before row 3"),
    ((pl.col("layer") == 4) & (pl.col("first") == 6), "lacks the last rows of layer 4 of add"),
])  # fmt: skip
def test_a_layer_that_lacks_rows_is_refused(copy: Path, gone: pl.Expr, said: str):
    manifest = copy / shards.MANIFEST
    write_table(pl.read_parquet(manifest).filter(~gone), manifest)
    with pytest.raises(StoreError, match=said):
        shards.stores(copy)


def test_shards_that_no_manifest_lists_yet_are_no_rows(copy: Path):
    """Each counts its rows from 0, and so does not say where in the square they are."""
    (copy / shards.MANIFEST).unlink()
    data = copy.parents[2]
    assert connect(data).tables() == []
    write(data / "whole/store/activations/add.h5", LAYERS, slice(None), "whole", "add")
    assert connect(data).sql("select distinct subject from activations").fetchall() == [("whole",)]


def test_shards_that_are_still_parts_are_no_rows(tmp_path: Path):
    write(
        tmp_path / "data/a/store/activations.parts/key/000000.h5",
        LAYERS,
        slice(0, BLOCK),
        "a",
        "add",
    )
    write(
        tmp_path / "data/a/store/predictions.parts/key/000000.0.h5",
        LAYERS,
        slice(0, BLOCK),
        "a",
        "add",
    )
    assert connect(tmp_path / "data").tables() == []
