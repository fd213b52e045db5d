"""Test that queries cannot write.

No statement, anywhere in a query, and no name of a file changes, makes or removes a file.
"""

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
    "copy (select 42 as a, 1 as b) to 'p' (format parquet, partition_by (b), overwrite_or_ignore)",
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
    "read_parquet('{file}')",
    "read_csv('{file}')",
    "read_json('{file}')",
    "read_text('{file}')",
    "read_blob('{file}')",
    "'{file}'",
    "glob('*')",
    "parquet_metadata('{file}')",
    "parquet_schema('{file}')",
    "sniff_csv('{file}')",
    "read_duckdb('{file}')",
    "query('from ''{file}''')",
    "sqlite_scan('{file}', 't')",
    "parquet_scan('{file}')",
]
# statements that may succeed, as they do not run what they contain
HARMLESS = ("explain", "describe", "summarize", "select * from query($$call pragma")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with one table, and make it the current folder."""
    (tmp_path / TABLE).parent.mkdir(parents=True)
    pl.DataFrame({"subject": ["a"], "accuracy": [0.5]}).write_parquet(tmp_path / TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> dict[Path, tuple]:
    """Return the bytes, times and modes of all files below a folder."""
    entries = {}
    for path in folder.rglob("*"):
        status, content = path.stat(), path.read_bytes() if path.is_file() else b""
        entries[path] = (content, status.st_mode, status.st_mtime_ns, status.st_nlink)
    return entries


@pytest.mark.parametrize("place", PLACES)
def test_no_statement_writes_anywhere_in_a_query(project: Path, place: str):
    database, before = connect(project / "data", threads=1), everything(project)
    succeeded = []
    for writer in WRITERS:
        files = (TABLE, str(project / TABLE), "new.parquet", "data/a/store/new.parquet")
        text = place.replace("{w}", writer)
        queries = [text.replace("{file}", file) for file in files]
        for query in dict.fromkeys(queries):  # most writers name no file
            with suppress(QueryError, duckdb.Error):
                database.sql(query).fetchall()
                succeeded.append(query)
    assert everything(project) == before
    assert database.sql("select accuracy from accuracy").fetchall() == [(0.5,)]
    assert [query for query in succeeded if not query.startswith(HARMLESS)] == []


def test_an_engine_without_our_settings_does_write(project: Path):
    """Show that the test above can fail."""
    before = everything(project)
    writer = WRITERS[0].replace("{file}", TABLE)
    duckdb.sql(f"with x as ({writer}) select * from x").fetchall()
    assert everything(project) != before


@pytest.mark.parametrize("reader", READERS)
def test_no_function_reads_other_files_than_tables(project: Path, reader: str):
    (project / "secret.csv").write_text("a\n1\n")
    database = connect(project / "data", threads=1)
    refused = "disabled by configuration|Table with name /etc/passwd does not exist"
    for file in (TABLE, str(project / TABLE), "secret.csv", "/etc/passwd"):
        with pytest.raises((QueryError, duckdb.Error), match=refused):
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
    """This holds for names of folders, subjects and tables."""
    folder = project / name.replace("/", "_")
    (folder / f"data/{name}/store").mkdir(parents=True)
    shutil.copy(project / TABLE, folder / f"data/{name}/store/accuracy.parquet")
    shutil.copy(project / TABLE, folder / f"data/{name}/store/{name}.parquet")
    before = everything(project)
    database = connect(folder / "data", threads=1)
    assert database.sql("select accuracy from accuracy").fetchall() == [(0.5,)]
    assert name.removesuffix(".parquet") in database.tables()
    assert everything(project) == before


@pytest.mark.parametrize(
    ("way", "argument"),
    [("text", ""), ("file", "query.sql"), ("standard input", "-"), ("shell", "shell")],
)
def test_the_console_does_not_write_either(project: Path, way: str, argument: str):
    writer = WRITERS[0].replace("{file}", TABLE)
    query = f"with x as ({writer}) select * from x"
    history = project / ".bag_history"
    (project / "query.sql").write_text(query)
    history.touch()
    before = everything(project)
    done = run_in(project, "bag", argument or query, check=False, input=query + ";\n")
    assert done.returncode != 0 or way == "shell"
    assert "disabled by configuration" in (done.stdout if way == "shell" else done.stderr)
    after = everything(project)
    assert after.pop(history)
    assert before.pop(history)
    assert after == before
