"""Users' queries are bounded, remove spilled rows, and name missing tables (real processes)."""

import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import psutil
import pytest

from stages.lib import dictionary
from stages.lib.sql import limits, missing
from stages.lib.sql.database import Database, QueryError, connect
from tests.conftest import bag_in, run_in
from tests.micro import ROOT

HASHES = "select hash(range) as h, range from range(100_000_000_000) order by h"
SORTED = f"select count(*) from ({HASHES})"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write labels of the subject able, and the heuristics of all."""
    folder = tmp_path_factory.mktemp("project")
    operators = ["add", "subtract"]
    labels = pl.DataFrame({"subject": ["able", "able"], "operator": operators, "layer": [0, 1]})
    labels.write_parquet(folder / "data/able/heuristics/labels.parquet", mkdir=True)
    heuristics = pl.DataFrame({"operator": ["add"], "heuristic": ["op1 = op2"]})
    heuristics.write_parquet(folder / "data/heuristics/heuristics.parquet", mkdir=True)
    return folder


def test_a_user_has_a_quarter_of_the_memory_and_a_private_folder_elsewhere(project: Path):
    first, second = (connect(project / "data") for _ in range(2))
    query = "select current_setting('memory_limit'), current_setting('temp_directory')"
    [(memory, folder)] = first.sql(query).fetchall()
    number, unit = memory.split()
    power = ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert float(number) * 1024**power <= limits.memory() / 4 * 1.05
    assert limits.memory() <= psutil.virtual_memory().total
    # else one connection would overwrite what the other spills
    assert folder != second.sql(query).fetchall()[0][1]
    parent = Path(folder).parent
    assert not parent.is_relative_to(project)
    assert parent.stat().st_mode & 0o777 == 0o700
    for change in (
        "set memory_limit = '1TB'",
        "set temp_directory = '/tmp'",
        "reset max_temp_directory_size",
    ):
        with pytest.raises(QueryError, match="only reads"):
            first.sql(change)
    # a stage of the pipeline
    assert Database({}).sql("select current_setting('temp_directory')").fetchall() == [(".tmp",)]


def test_a_container_may_have_less_memory_than_its_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for group in [line.split(":", 2) for line in lines]:
        kind, name = ("memory", "memory.limit_in_bytes") if group[1] else ("", "memory.max")
        folder = tmp_path / kind / group[2].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("max\n")
        assert limits.memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        (folder / name).write_text(f"{1 << 20}\n")
        assert limits.memory() == 1 << 20
        (folder / name).unlink()


def small(project: Path, spilled: int) -> list[str]:
    """Return the command of a long query with 128 MiB of memory and `spilled` bytes of disk."""
    code = (
        f"from stages.lib.sql import limits; limits.SPILLED = {spilled}\n"
        "limits.memory = lambda: 1 << 29\n"
        # not ignored, as it is below a shell's job in the background
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        f"import sys; sys.argv = ['bag', '--data', {str(project / 'data')!r}, {SORTED!r}]\n"
        "from stages.lib.console import bag; bag.main()"
    )
    return ["python", "-c", code]


def spilling(project: Path, temporary: Path) -> subprocess.Popen:
    """Start a query, and wait until it has spilled rows to a folder in this one."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *small(project, 4 << 30)[1:]]
    process = subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not list(temporary.glob("bag-spilled-*/*/*")):
        with pytest.raises(subprocess.TimeoutExpired):  # it is still at work
            process.wait(0.02)
    return process


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_nothing_that_was_spilled_is_left_behind(
    project: Path,
    tmp_path: Path,
    end: signal.Signals,
):
    process = spilling(project, tmp_path)
    process.send_signal(end)
    printed, _ = process.communicate()
    assert (process.returncode, "Traceback" in printed) == (-end, False)
    assert list(tmp_path.iterdir()) == []
    assert not (project / ".tmp").exists()


def test_what_a_killed_query_has_spilled_the_next_one_removes(project: Path, tmp_path: Path):
    process = spilling(project, tmp_path)
    query = (ROOT, "bag", "--data", str(project / "data"), "select 1")
    try:
        run_in(*query, more={"TMPDIR": str(tmp_path)})
        assert list(tmp_path.glob("bag-spilled-*/*/*"))  # its owner is at work
    finally:
        process.kill()
        process.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "bag-spilled-mine").mkdir()  # not made by us
    run_in(*query, more={"TMPDIR": str(tmp_path)})
    assert [path.name for path in tmp_path.iterdir()] == ["bag-spilled-mine"]


def test_a_query_that_takes_too_much_is_a_sentence_and_leaves_nothing(
    project: Path,
    tmp_path: Path,
):
    done = run_in(ROOT, *small(project, 8 << 20), check=False, more={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "ask for fewer rows" in done.stderr
    assert "PRAGMA" not in done.stderr  # which no query can set
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("style", ["table", "wide", "records", "csv", "json"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
def test_a_full_disk_is_a_sentence(project: Path, style: str):
    option = [] if style == "table" else [f"--{style}"]
    command = [
        Path(sys.executable).parent / "bag",
        "--data",
        project / "data",
        *option,
        "from range(3000)",
    ]
    with open("/dev/full", "w") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE}
        done = subprocess.run(command, cwd=ROOT, text=True, check=False, **streams)
    assert (done.returncode, done.stderr) == (1, "bag: [Errno 28] No space left on device\n")


SUBJECT = "no subject 'abel' here; subjects here: able"
OPERATOR = "no operator 'plus' here; operators here: add"
PAIR = "with x as (from labels) select * from x where (subject, operator) = ('abel', 'plus')"
NEGATED = "subject <> 'abel' and not subject = 'abel' and subject not in ('abel')"
UNKNOWN = [  # query, parameters, remarks
    ("from labels where subject = 'abel'", {}, [SUBJECT]),
    ("select count(*) from labels where 'abel' = subject", {}, [SUBJECT]),
    ("from labels as l where l.subject in ('able', 'abel') and layer = 7", {}, [SUBJECT]),
    ("from labels where operator = $o", {"o": "plus"}, [f"{OPERATOR}, subtract"]),
    (PAIR, {}, [SUBJECT, f"{OPERATOR}, subtract"]),
    ("select count(*) filter (operator = 'plus') from heuristics", {}, [OPERATOR]),
    ("from labels where subject = 'able' and layer = 7", {}, []),
    (f"from labels where {NEGATED}", {}, []),
    ("from labels where operator = 'divide'", {}, []),  # an operator, though of no row
    ("select 1 where 'abel' = 'abel'", {}, []),
    ("select * from (select 'x' as subject) where subject = 'y'", {}, []),
]  # fmt: skip


@pytest.mark.parametrize(("query", "parameters", "remarks"), UNKNOWN)
def test_an_unknown_subject_or_operator_is_said_in_console_and_notebook(
    project: Path,
    query: str,
    parameters: dict,
    remarks: list[str],
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = connect(project / "data").sql(query, **parameters).fetchall()
    assert [str(warning.message) for warning in caught] == remarks
    assert all(warning.filename == __file__ for warning in caught)
    given = [text for name, value in parameters.items() for text in ("-p", f"{name}={value}")]
    done = bag_in(project, "--csv", query, *given)
    lines = [*remarks, *([] if rows else ["no rows"])]
    assert done.stderr.splitlines() == [f"bag: {line}" for line in lines]
    assert len(done.stdout.splitlines()) == 1 + len(rows)


MISSING = [  # query, and words of its message
    ("from accuracy where subject = 'able'", [
        "There is no table accuracy here", "`dvc repro stages/store/dvc.yaml:accuracy@able`",
        "`make pull`"]),
    ("select * from facts", ["`dvc repro stages/corpus/dvc.yaml:facts`"]),
    ("from labels join Accuracy using (subject)", ["stages/store/dvc.yaml:accuracy@able"]),
    ("from lables", ['Did you mean "labels"?']),
    ("from accuracies", ['Did you mean "accuracy"? The stage accuracy']),
    ("from nulls", ['Did you mean "permutation_tests"?', "heuristics/dvc.yaml:permutation_tests@"]),
    ("from nowhere_at_all", ["nowhere_at_all does not exist! `bag tables` lists"]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "words"), MISSING)
def test_a_missing_table_is_said_with_the_way_to_it_in_console_and_notebook(
    project: Path,
    query: str,
    words: list[str],
):
    with pytest.raises(QueryError) as refused:
        connect(project / "data").sql(query)
    printed = bag_in(project, query).stderr
    assert printed == f"bag: {refused.value}\n"
    for word in words:
        assert word in printed
    assert "duckdb_" not in printed


@pytest.mark.parametrize(
    ("query", "ending"),
    [
        ("select place from labels", "The column place of labels is now rank."),
        ("from labels select labels.PLACE", "The column place of labels is now rank."),
        (
            "select l.corrected from labels as l join heuristics using (operator)",
            "The column corrected of labels is now chance_corrected.",
        ),
        ("with w as (from labels) select w.place from w", "place of labels is now rank."),
        # columns that these tables never had
        ("select share from labels", ""),
        ("select membership from labels where operator = 'faults'", ""),
        ("select h.place from labels join heuristics as h using (operator)", ""),
    ],
)
def test_an_old_name_of_a_column_is_explained_for_tables_that_had_it(
    project: Path, query: str, ending: str
):
    printed = bag_in(project, query).stderr
    assert re.search(r'[Cc]olumn (named )?"\w+"', printed)
    assert ("is now" in printed) == bool(ending)
    assert printed.endswith(f"{ending}\n")


def test_renamed_columns_are_those_of_the_tables_of_today():
    documented = dictionary.tables(ROOT / "stages")
    for before, (now, tables) in missing.RENAMED_COLUMNS.items():
        assert tables
        for table in tables:
            assert now in documented[table].columns, table
            assert before not in documented[table].columns, table


@pytest.mark.parametrize("depth", [100, 400, 5000])
def test_a_query_nested_deeply_works_or_is_a_sentence(project: Path, depth: int):
    value = f"{'(' * depth}1{')' * depth}"
    done = bag_in(project, f"select {value} as subject from labels where subject = 'able'")
    assert (done.returncode, "Traceback" in done.stderr) in ((0, False), (1, False))
