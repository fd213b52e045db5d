"""A table with a changed byte is refused by name, or read as it was written."""

from importlib.util import find_spec
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stages
from stages.lib.core.tables import TableError, read_table, write_table
from stages.lib.sql.database import Database, DatabaseError, QueryError, connect
from stages.lib.sql.files import files_of, subject_files
from stages.lib.units.parts import Parts
from tests.conftest import run_in
from tests.micro import ROOT

SMALL = pl.DataFrame(
    {"subject": ["a", "b"], "op1": [3, None], "share": [0.5, 0.25], "tokens": [[1, 2], []]}
)
LARGE = pl.DataFrame(
    {
        "op1": np.arange(300_000, dtype=np.int16),
        "share": np.random.default_rng(0).normal(size=300_000),
    }
)


def flip(path: Path, place: int, bits: int) -> None:
    with path.open("rb+") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bits]))


def read_by_stage(path: Path) -> pl.DataFrame:
    return read_table(path)


def read_by_sql(path: Path) -> pl.DataFrame:
    return Database({"t": [path]}, threads=1).sql("from t").pl()


READERS = [read_by_stage, read_by_sql]


@pytest.mark.parametrize(
    ("reader", "bits", "step"),
    [(read_by_stage, 1, 1), (read_by_stage, 255, 1), (read_by_sql, 1, 41), (read_by_sql, 128, 37)],
)
def test_no_byte_of_a_small_table_changes_unseen(tmp_path: Path, reader, bits: int, step: int):
    """Change bytes of the data, of the footer and of the checksums."""
    path = tmp_path / "t.parquet"
    write_table(SMALL, path)
    places, refused = range(0, path.stat().st_size, step), 0
    for place in places:
        flip(path, place, bits)
        try:
            assert reader(path).equals(SMALL)
        except TableError:
            refused += 1
        flip(path, place, bits)
    assert refused > 0.95 * len(places)
    assert reader(path).equals(SMALL)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "t.parquet"
    write_table(LARGE, path)
    return path


@given(share=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_no_byte_of_a_large_table_changes_unseen(large: Path, share: float, bits: int):
    place = int(share * (large.stat().st_size // 2))  # of its data
    flip(large, place, bits)
    try:
        for reader in READERS:
            with pytest.raises(TableError, match=r"t\.parquet is damaged"):
                reader(large)
    finally:
        flip(large, place, bits)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, -1, -9])
def test_a_cut_table_is_refused(tmp_path: Path, cut: int):
    write_table(SMALL, tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:cut])
    for reader in READERS:
        with pytest.raises(TableError, match=r"t\.parquet is damaged"):
            reader(tmp_path / "t.parquet")


@pytest.mark.parametrize("size", [9, 12, 15, 20, 23])
def test_a_file_too_small_for_a_table_is_refused(tmp_path: Path, size: int):
    """It ends as a table does."""
    (tmp_path / "t.parquet").write_bytes(
        b"x" * (size - 8) + (size - 8).to_bytes(4, "little") + b"PAR1"
    )
    for reader in READERS:
        with pytest.raises(TableError, match=r"t\.parquet is damaged"):
            reader(tmp_path / "t.parquet")


def test_every_program_reads_it(large: Path):
    assert pl.read_parquet(large).equals(LARGE)
    assert pl.from_arrow(pq.read_table(large, page_checksum_verification=True)).equals(LARGE)
    assert duckdb.sql(f"from '{large}'").pl().equals(LARGE)
    assert duckdb.sql(f"select sum(op1) from '{large}' where op1 > 1000").fetchall() == [
        (LARGE.filter(pl.col("op1") > 1000)["op1"].sum(),)
    ]


def test_only_who_asks_for_it_hears_of_a_damaged_table(tmp_path: Path):
    for name in ("accuracy", "cells", "numbers"):
        write_table(SMALL, tmp_path / f"a/store/{name}.parquet")
    flip(tmp_path / "a/store/cells.parquet", 10, 4)  # its data
    (tmp_path / "a/store/numbers.parquet").write_bytes(b"")  # so that it cannot even be opened
    database = connect(tmp_path, threads=1)
    assert database.sql("select 1").fetchall() == [(1,)]
    assert len(database.sql("from accuracy").fetchall()) == 2
    assert database.tables() == ["accuracy", "cells", "numbers"]
    for name in ("cells", "numbers"):
        for query in (
            f"from {name}",
            f'select (select count(*) from "{name.upper()}")',
            f"from query_table('{name[:2]}' || '{name[2:]}')",
        ):
            with pytest.raises(TableError, match=r"(cells|numbers)\.parquet is damaged"):
                database.sql(query)


def test_a_damaged_table_is_no_error_of_a_query_that_only_resembles_its_name(tmp_path: Path):
    write_table(SMALL, tmp_path / "a/store/discovered_and_labels.parquet")
    write_table(SMALL, tmp_path / "a/store/labels.parquet")
    flip(tmp_path / "a/store/labels.parquet", 10, 4)
    database = connect(tmp_path, threads=1)
    for query in (
        "from discovered_and_labels",
        "select 1 as query_position from discovered_and_labels",
        "from discovered_and_labels -- without a subquery",
    ):
        assert len(database.sql(query).fetchall()) > 0
    for query in ("from labels", "from (select 1) as x, Labels", "from query('from lab' || 'els')"):
        with pytest.raises(TableError, match=r"labels\.parquet is damaged"):
            database.sql(query)


def test_a_macro_does_not_hide_a_damaged_table(tmp_path: Path):
    """answers_of reads `runs`, which the query does not name."""
    runs = pl.DataFrame({
        "subject": ["a"], "experiment": ["probe"], "intervention": [0], "pair": [0],
        "correct": [True], "answer_logit": [2.0],
        "mean_logit": [0.5],
    })  # fmt: skip
    path = tmp_path / "a/circuit/runs/probe.parquet"
    write_table(runs, path)
    assert connect(tmp_path).sql("select logit from answers_of('probe')").fetchall() == [(1.5,)]
    flip(path, 20, 1)
    with pytest.raises(TableError, match=r"probe\.parquet is damaged"):
        connect(tmp_path).sql("select logit from answers_of('probe')")


def test_a_damaged_part_of_a_stopped_stage_is_made_again(tmp_path: Path):
    parts = Parts(tmp_path / "out.parquet", "key")
    for number in range(3):
        parts.write(number, SMALL)
    (tmp_path / "out.parts/key/000000.parquet").write_bytes(b"")
    flip(tmp_path / "out.parts/key/000001.parquet", 30, 2)
    again = Parts(tmp_path / "out.parquet", "key")
    assert again.missing(4) == [0, 1, 3]
    for number in (0, 1):
        again.write(number, SMALL)
    again.finish([[0], [1, 2]], SMALL.clear())
    assert read_table(tmp_path / "out.parquet").equals(pl.concat([SMALL] * 3))


@pytest.mark.parametrize("output", ["heuristics/scores.parquet", "circuit/runs/heads.parquet"])
def test_parts_of_a_stage_that_is_not_done_are_no_rows(tmp_path: Path, output: str):
    """Neither `bag` nor a stage reads them, also beside another subject's complete table."""
    data, table = tmp_path / "data", output.split("/")[1].removesuffix(".parquet")
    parts = Parts(data / "a" / output, "key")
    parts.write(0, SMALL)
    assert connect(data).tables() == []
    with pytest.raises(QueryError, match=f"no table {table} here"):
        connect(data).sql(f"from {table}")
    write_table(SMALL, data / "b" / output)
    whole = {table: [data / "b" / output]}
    assert files_of([data / "a" / Path(output).parts[0], data / "b"], data) == whole
    assert subject_files("a", [table], data) == {}
    assert connect(data).sql(f"from {table}").pl().equals(SMALL)
    parts.finish([[0]], SMALL.clear())
    assert len(connect(data).sql(f"from {table}").fetchall()) == 2 * len(SMALL)


def test_a_file_that_is_no_table_is_named_with_the_way_out(tmp_path: Path):
    """It ends as Parquet does, and has no seal."""
    path = tmp_path / "data/a/store/accuracy.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1" + bytes(range(200)) + (100).to_bytes(4, "little") + b"PAR1")
    way_out = "`bag verify --heal` removes .* `dvc repro` makes it again, or `make pull` fetches it"
    problem = rf"accuracy\.parquet is damaged: .*; {way_out}$"
    for read in (read_table, lambda path: connect(path.parents[2]).sql("from accuracy")):
        with pytest.raises(TableError, match=problem):
            read(path)
    SMALL.write_parquet(path)
    assert read_table(path).equals(SMALL)  # without a seal, as other programs write it


NOTEBOOK = """
import sys
from stages import connect
assert {"torch", "transformers", "duckdb", "polars", "numpy"}.isdisjoint(sys.modules)
with connect() as bag:
    print(bag.sql("from accuracy where op1 = $number", number=3).pl())
assert {"torch", "transformers", "matplotlib", "dvc"}.isdisjoint(sys.modules)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one table; a chapter has settings of its own."""
    project = tmp_path / "project"
    (project / "stages/circuit").mkdir(parents=True)
    (project / "params.yaml").write_text("default: a\n")
    (project / "stages/circuit/params.yaml").write_text("runs: 1\n")
    write_table(SMALL, project / "data/a/store/accuracy.parquet")
    return project


def test_a_notebook_in_any_folder_of_a_project_queries_it(project: Path):
    folder = project / "stages/circuit"
    done = run_in(folder, "python", "-c", NOTEBOOK, more={"PYTHONPATH": str(ROOT)})
    assert str(SMALL.filter(pl.col("op1") == 3)) in done.stdout


def test_a_connection_closes_and_makes_frames(project: Path):
    with stages.connect(project / "data") as bag:
        relation = bag.sql("from accuracy")
        assert relation.pl().equals(SMALL)
        if find_spec("pandas"):
            assert len(relation.df()) == len(SMALL)
        else:
            with pytest.raises(DatabaseError, match="'pandas' is required"):
                relation.df()
    with pytest.raises(DatabaseError, match="closed"):
        bag.sql("from accuracy")
    with stages.connect(data=project / "data") as bag:
        assert bag.tables() == ["accuracy"]


def test_a_folder_without_a_project_is_named_with_the_fix(tmp_path: Path, project: Path):
    way_out = "; pass the project's folder"
    with pytest.raises(QueryError, match=f"^{tmp_path} is not in a project.*{way_out}"):
        stages.connect(tmp_path)
    with pytest.raises(QueryError, match=f"^there is no folder {project}/typo{way_out}"):
        stages.connect(project / "typo")
