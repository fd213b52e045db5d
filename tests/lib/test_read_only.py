"""Reading cannot write: no statement, wherever it stands in a query, and no name of a file changes, makes or removes a file."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import duckdb
import polars as pl
import pytest

from stages.lib.sql.database import QueryError, connect
from tests.conftest import run_in

TABLE = "data/a/store/accuracy.parquet"
WRITERS = [
    "copy (select 42 as a) to '{file}' (format parquet, use_tmp_file false)",
    "copy (select 42 as a) to '{file}' (format csv)",
    "copy (select 42 as a) to 'new.json' (format json)",
    "copy (select 42 as a, 1 as b) to 'parts' (format parquet, partition_by (b), overwrite_or_ignore)",
    "copy accuracy to '{file}' (format parquet)",
    "copy accuracy from '{file}' (format parquet)",
    "export database 'exported'",
    "import database 'exported'",
    "attach 'new.db'",
    "attach '{file}' as other",
    "detach memory",
    "create table made as select 42 as a",
    "create or replace view accuracy as select 42 as a",
    "create macro accuracy() as 42",
    "create secret s (type s3, key_id 'k', secret 's')",
    "create persistent secret s (type s3, key_id 'k', secret 's')",
    "insert into accuracy values (42)",
    "update accuracy set accuracy = 42",
    "delete from accuracy",
    "truncate accuracy",
    "merge into accuracy using (select 42 as a) on true when matched then delete",
    "drop view accuracy",
    "alter table accuracy rename to other",
    "comment on table accuracy is 'x'",
    "vacuum",
    "checkpoint",
    "force checkpoint",
    "install httpfs",
    "load httpfs",
    "load '{file}'",
    "set enable_external_access = true",
    "set temp_directory = 'spilled'",
    "set log_query_path = 'log.txt'",
    "reset enable_external_access",
    "pragma enable_profiling",
    "pragma profiling_output = 'profile.json'",
    "call pragma_version()",
    "call enable_logging(storage = 'file', storage_path = 'logs')",
    "prepare p as copy (select 42) to 'new.csv'",
    "execute p",
    "begin",
    "use memory",
]
PLACES = [
    "{w}",
    "explain {w}",
    "explain analyze {w}",
    "({w})",
    "with x as ({w}) select * from x",
    "with x as materialized ({w}) select * from x",
    "with x as not materialized ({w}) select * from x",
    "with recursive x as ({w}) select * from x",
    "with recursive x as (select 1 union all ({w})) select * from x",
    "with y as (with x as ({w}) select * from x) select * from y",
    "explain analyze with x as ({w}) select * from x",
    "select * from ({w}) as x",
    "select * from (with x as ({w}) select * from x)",
    "from ({w})",
    "select ({w})",
    "select (with x as ({w}) select * from x)",
    "select array({w})",
    "select 1 where exists ({w})",
    "select 1 where exists (with x as ({w}) select * from x)",
    "select 1 where 1 in ({w})",
    "select 1 where 1 > all ({w})",
    "select * from accuracy, lateral ({w}) as x",
    "select * from accuracy join ({w}) as x on true",
    "select * from accuracy order by ({w})",
    "select count(*) from accuracy group by all having exists ({w})",
    "select 1 union all ({w})",
    "({w}) intersect select 1",
    "values (({w}))",
    "select * from query($${w}$$)",
    "pivot ({w}) on a",
    "summarize {w}",
    "describe {w}",
    "select * from accuracy; {w}",
    "{w}; select * from accuracy",
    "from accuracy |> {w}",
]
READERS = [
    "read_parquet('{file}')", "read_csv('{file}')", "read_json('{file}')", "read_text('{file}')", "read_blob('{file}')", "'{file}'",
    "glob('*')", "parquet_metadata('{file}')", "parquet_schema('{file}')", "sniff_csv('{file}')", "read_duckdb('{file}')",
    "query('from ''{file}''')", "sqlite_scan('{file}', 't')", "parquet_scan('{file}')", "arrow_scan_dumb(1, 2, 3)",
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one table, in which queries are asked."""
    (tmp_path / TABLE).parent.mkdir(parents=True)
    pl.DataFrame({"subject": ["a"], "accuracy": [0.5]}).write_parquet(tmp_path / TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> dict[str, tuple]:
    """All that is in a folder: bytes, times and modes."""
    status = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (
            path.read_bytes() if path.is_file() else b"",
            of.st_mode,
            of.st_mtime_ns,
            of.st_nlink,
        )
        for path, of in status.items()
    }


@pytest.mark.parametrize("place", PLACES)
def test_no_statement_writes_wherever_it_stands(project: Path, place: str):
    database, before, answered = connect(project / "data", threads=1), everything(project), []
    for writer in WRITERS:
        for file in (TABLE, str(project / TABLE), "new.parquet", "data/a/store/new.parquet"):
            query = place.replace("{w}", writer).replace("{file}", file)
            with suppress(QueryError, duckdb.Error):
                database.sql(query).fetchall()
                answered.append(query)
    assert everything(project) == before
    assert database.sql("select accuracy from accuracy").fetchall() == [(0.5,)]
    assert all(
        query.startswith(("explain", "describe", "summarize", "select * from query($$call pragma"))
        for query in answered
    ), answered


def test_an_engine_without_our_settings_does_write(project: Path):
    """What the test above would see if it were not so."""
    before = everything(project)
    duckdb.sql(f"with x as ({WRITERS[0].replace('{file}', TABLE)}) select * from x").fetchall()
    assert everything(project) != before


@pytest.mark.parametrize("reader", READERS)
def test_no_function_reads_a_file_that_is_no_table(project: Path, reader: str):
    (project / "secret.csv").write_text("a\n1\n")
    database = connect(project / "data", threads=1)
    for file in (TABLE, str(project / TABLE), "secret.csv", "/etc/passwd"):
        with pytest.raises((QueryError, duckdb.Error)):
            database.sql(f"select * from {reader.replace('{file}', file)}").fetchall()


@pytest.mark.parametrize(
    "name",
    [
        "o'brien",
        'a "quoted" name',
        "x') as t; copy (select 42) to 'new.csv'; --",
        "a;b",
        "percent%20",
        "ü",
        "a\nb",
        "[ab]*?",
        "$subject",
        "-- a",
    ],
)
def test_a_name_is_never_sql(project: Path, name: str):
    """Of a folder above, of a subject, and of a table."""
    folder = project / name.replace("/", "_")
    (folder / f"data/{name}/store").mkdir(parents=True)
    shutil.copy(project / TABLE, folder / f"data/{name}/store/accuracy.parquet")
    shutil.copy(project / TABLE, folder / f"data/{name}/store/{name}.parquet")
    before = everything(project)
    database = connect(folder / "data", threads=1)
    assert database.sql("select accuracy from accuracy").fetchall() == [(0.5,)]
    assert name.removesuffix(".parquet") in database.tables()
    assert everything(project) == before


@pytest.mark.parametrize("how", ["text", "file", "standard input", "shell"])
def test_the_console_does_not_write_either(project: Path, how: str):
    query = f"with x as ({WRITERS[0].replace('{file}', TABLE)}) select * from x"
    (project / "query.sql").write_text(query)
    (project / ".bag_history").touch()
    before = everything(project)
    given = {"text": query, "file": "query.sql", "standard input": "-", "shell": "shell"}[how]
    done = run_in(project, "bag", given, check=False, input=query + ";\n")
    assert done.returncode != 0 or how == "shell"
    assert "disabled by configuration" in (done.stdout if how == "shell" else done.stderr)
    after = everything(project)
    history = str(project / ".bag_history")
    assert {path: of for path, of in after.items() if path != history} == {
        path: of for path, of in before.items() if path != history
    }
    assert os.listdir(project).count("new.csv") == 0
