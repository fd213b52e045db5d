"""`bag` prints rows that do not fit: on terminals of known widths, in pipes and in the shell."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import psutil
import pytest

from stages.lib.console.command import main
from stages.lib.console.output import AT_ONCE, STYLES, Look, show
from stages.lib.console.values import parameters
from stages.lib.sql import cells
from stages.lib.sql.database import ERRORS, Database
from tests.conftest import run_in
from tests.lib.terminals import Terminal
from tests.micro import ROOT

NAMES = [
    f"column_{number:02}" for number in range(20)
]  # 9 wide and a blank on both sides, between 21 lines
WIDE = 20 * 11 + 21
BAG = Path(sys.executable).parent / "bag"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a table of 20 columns and 2 rows.

    One row has each column's number, the other `value <number>`.
    """
    folder = tmp_path_factory.mktemp("project") / "data"
    pl.DataFrame(
        {name: [str(number), f"value {number}"] for number, name in enumerate(NAMES)}
    ).write_parquet(folder / "corpus/broad.parquet", mkdir=True)
    return folder


def on_terminal(data: Path, *arguments: str, columns: int) -> str:
    status, text = Terminal(ROOT, "bag", "--data", str(data), *arguments, columns=columns).finish()
    assert status == 0, text
    return text


def printed(text: str) -> list[str]:
    """Return the columns of which a table shows values."""
    return [name for name in NAMES if re.search(rf"│ +{name} +│", text.replace("│", "││"))]


def widest(text: str) -> int:
    return max(len(line) for line in text.splitlines() if line.startswith(("│", "┌")))


def test_a_terminal_wide_enough_shows_every_column_and_no_remark(data: Path):
    text = on_terminal(data, "from broad", columns=WIDE)
    assert printed(text) == NAMES
    assert widest(text) == WIDE
    assert "bag:" not in text


@pytest.mark.parametrize("columns", [WIDE - 1, 100])
def test_a_narrow_terminal_says_how_many_columns_are_left_out(data: Path, columns: int):
    text = on_terminal(data, "from broad", columns=columns)
    assert widest(text) <= columns
    left_out = len(NAMES) - len(printed(text))
    assert left_out > 0
    assert f"bag: {left_out} of 20 columns are left out; --wide prints" in text
    assert "--records" in text


def test_wide_shows_every_column_on_any_terminal(data: Path):
    text = on_terminal(data, "from broad", "--wide", columns=80)
    assert printed(text) == NAMES
    assert "bag:" not in text


def test_a_cut_value_is_said_and_wide_prints_it(data: Path):
    query = (
        "select repeat('long ', 100) || number as value, number from range(40) as numbers(number)"
    )
    text = on_terminal(data, query, columns=80)
    assert "bag: values that end in … are cut; --wide prints them whole" in text
    assert "long 39 │" not in text
    wide = on_terminal(data, query, "--wide", columns=80)
    assert "long 39 │" in wide
    assert "bag:" not in wide


def test_records_are_a_line_for_each_column(data: Path):
    text = on_terminal(
        data,
        "select *, null as nothing, e'two\\nlines' as text from broad order by column_00",
        "--records",
        columns=80,
    )
    first, second = re.split(r"─── record \d ───\n", text)[1:]
    assert first.splitlines()[:2] == ["column_00  0", "column_01  1"]
    assert first.splitlines()[20:] == ["nothing    NULL", "text       two", "           lines", ""]
    assert [line.split("  ", 1) for line in second.splitlines()[:20]] == [
        [name, f"value {n}"] for n, name in enumerate(NAMES)
    ]


def test_no_more_records_than_rows_are_asked_for(data: Path):
    text = on_terminal(data, "from range(5)", "--records", "--rows", "3", columns=80)
    assert re.findall(r"record (\d)", text.split("bag:")[0]) == ["1", "2", "3"]
    assert "bag: only the first 3 records are printed; --rows COUNT prints more" in text
    assert "bag:" not in on_terminal(data, "from range(5)", "--records", "--rows", "5", columns=80)
    assert on_terminal(data, "from range(0)", "--records", columns=80) == "0 rows\n"


def test_a_pipe_gets_every_column_and_is_told_of_missing_rows(data: Path):
    whole = run_in(ROOT, "bag", "--data", str(data), "from broad")
    assert printed(whole.stdout) == NAMES
    assert whole.stderr == ""
    some = run_in(ROOT, "bag", "--data", str(data), "from range(50)", "--rows", "10")
    assert (
        some.stderr == "bag: not all rows are printed; --rows COUNT prints more, --csv prints all\n"
    )


def test_the_shell_prints_as_it_is_told(data: Path):
    terminal = Terminal(
        ROOT,
        "bag",
        "--data",
        str(data),
        "shell",
        folder=data.parent,
        columns=100,
        stdin=subprocess.PIPE,
    )
    typed = (
        b"from broad;\nwide\nfrom broad;\nrecords;\nfrom broad;\ntable\nselect 42\nas "
        b"answer;\nexit\n"
    )
    status, text = terminal.finish(typed)
    assert status == 0
    cut, whole, answer = re.findall("┌.*?└", text, re.DOTALL)
    assert (
        f"bag: {20 - len(printed(cut))} of 20 columns are left out; wide prints them whole, "
        f"records a line `column  value` for each" in text
    )
    assert len(printed(cut)) < 20
    assert printed(whole) == NAMES
    assert "42" in answer
    assert "column_19  value 19" in text.split("record 2")[1]


@pytest.mark.parametrize(
    ("query", "style", "wanted"),
    [
        (
            "select interval 3 days as i, [1, 2] as l, map {1: 2} as m",
            "csv",
            'i,l,m\n3 days,"[1, 2]",{1=2}\n',
        ),
        ("select 1 as a where false", "csv", "a\n"),
        ("select 1 as a where false", "json", "[]\n"),
        (
            "select interval 3 days as i, 2.5 as d, sum(3) as s",
            "json",
            '[{"i":"3 days","d":2.5,"s":3}]\n',
        ),
        ('select 1 as "a ""b"""', "csv", '"a ""b"""\n1\n'),
        ("select 1 as a, 2 as a, 3 as a_1, [4] as a", "csv", "a,a_1,a_1_1,a_2\n1,2,3,[4]\n"),
        ("select 1 as a, 2.5 as a", "json", '[{"a":1,"a_1":2.5}]\n'),
    ],
)
def test_every_type_has_a_form(capsys: pytest.CaptureFixture, query: str, style: str, wanted: str):
    show(Database({}), query, {}, Look(style))
    assert capsys.readouterr().out == wanted


VALUES = [  # of every kind of type that DuckDB has, by themselves and further in
    "1::hugeint", "1::uhugeint", "bignum '1'", "1.5::decimal(4, 1)", "true", "null",
    "'a'::enum('a')", "uuid()", "'{}'::json", "'101'::bit",
    "'x'::blob", "date '2020-01-01'", "time '10:00'", "timestamp_ns '2020-01-01'",
    "timestamptz '2020-01-01'", "interval 1 day", "[1]",
    "[1]::int[1]", "{'a': 1}", "(1, 'a')", "map {1: 2}", "union_value(a := 1)", "1::variant",
]  # fmt: skip


@pytest.mark.parametrize(
    "value", [form.format(value) for value in VALUES for form in ("{}", "[{}]", "{{'a': {}}}")]
)
def test_any_value_can_be_read_by_programs(capsys: pytest.CaptureFixture, value: str):
    show(Database({}), f"select {value} as x, 2 as y", {}, Look("csv"))
    [names, row] = csv.reader(capsys.readouterr().out.splitlines())
    assert (names, row[1:]) == (["x", "y"], ["2"])
    show(Database({}), f"select {value} as x, 2 as y", {}, Look("json"))
    [row] = json.loads(capsys.readouterr().out)
    assert [*row] == ["x", "y"]


BEYOND = [  # what Python, Polars or JSON cannot hold
    "'infinity'::date", "'-infinity'::timestamp", "'infinity'::timestamptz",
    "timestamp_ns 'infinity'", "'0044-03-15 (BC)'::date",
    "'290309-12-22 (BC)'::timestamp", "time '24:00:00'",
    "interval '9223372036854775807 microseconds'", "interval 2000000000 months",
    "170141183460469231731687303715884105727::hugeint",
    "340282366920938463463374607431768211455::uhugeint", "'nan'::double",
    "bignum '99999999999999999999999999999999999999999999'", "chr(0)", "'infinity'::date::variant",
    "18446744073709551615::ubigint",
]  # fmt: skip
FORMS = ("{}", "[{}]", "{{'a \"b': [{}]}}", "map {{1: {}}}", "union_value(a := {})", "[null, [{}]]")


def _refused(database: Database, query: str, style: str) -> str:
    """Return the message of a query that fails, empty if it prints rows."""
    try:
        show(database, query, {}, Look(style))
    except ERRORS as error:
        return str(error)
    return ""


@pytest.mark.parametrize("style", STYLES)
def test_values_beyond_python_are_printed_or_refused_in_every_style(
    capsys: pytest.CaptureFixture,
    style: str,
):
    database = Database({})
    for value in [form.format(value) for value in BEYOND for form in FORMS]:
        [[expected]] = database.sql(f"select ({value})::varchar").fetchall()
        refused = _refused(database, f"select {value} as x", style)
        if refused:
            # an integer that no reader of JSON holds
            assert (style, "INT64" in refused) == ("json", True), value
            capsys.readouterr()
            continue
        printed = capsys.readouterr().out
        if style == "csv":
            header, [cell] = csv.reader(io.StringIO(printed))
            assert (header, cell.lower()) == (["x"], expected.lower()), value  # NaN, nan
        elif style == "json":
            assert [*json.loads(printed)[0]] == ["x"], value
        else:
            assert expected.partition("\0")[0] in printed, value


@pytest.mark.parametrize("style", STYLES)
def test_a_large_cell_is_cut_for_people_and_refused_to_programs(
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    style: str,
):
    monkeypatch.setattr(cells, "SHOWN", 100)
    monkeypatch.setattr(cells, "WHOLE", 1000)
    long = "repeat('x', 5000)"
    for value in (long, "range(5000)", f"map {{1: {long}}}", f"{{'size': {long}}}"):
        refused = _refused(Database({}), f"select {value} as wide", style)
        if refused:
            assert style != "records"
            problem = "a value of the column wide has more than 1,000 characters"
            assert f"{problem}; cut it in the query" in refused
        out, remarks = capsys.readouterr()
        assert len(out) < 2000
        assert ("are cut; --csv prints them whole" in remarks) == ("…" in out)
    show(Database({}), "select repeat('x', 900) as x", {}, Look("csv"))
    assert capsys.readouterr().out == f"x\n{'x' * 900}\n"


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, 2 * AT_ONCE + 1])
def test_long_answers_are_whole_for_programs(capsys: pytest.CaptureFixture, count: int):
    query, wanted = (
        f"select range as a, 'x' as b from range({count})",
        [{"a": number, "b": "x"} for number in range(count)],
    )
    show(Database({}), query, {}, Look("json"))
    assert json.loads(capsys.readouterr().out) == wanted
    show(Database({}), query, {}, Look("csv"))
    assert [
        (int(row["a"]), row["b"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))
    ] == [tuple(r.values()) for r in wanted]


def test_what_json_cannot_say_is_said(capsys: pytest.CaptureFixture):
    show(Database({}), "select unnest(['nan'::double, 'inf', 1]) as x", {}, Look("json"))
    out, err = capsys.readouterr()
    assert json.loads(out) == [{"x": None}, {"x": None}, {"x": 1.0}]
    assert "NaN and infinity are null here" in err


def test_a_terminal_that_lacks_letters_gets_the_rest(data: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [BAG, "--data", data, "select column_01 from broad"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "? value 1 " in done.stdout


def test_ctrl_c_ends_a_query_at_once_and_only_that_in_the_shell(data: Path):
    """Interrupt a query that would take hours."""
    endless = "select sum(a.i * b.i * c.i) from n a, n b, n c where (a.i + b.i) % 3 = c.i % 7"
    query = f"with n as (select range as i from range(100000)) {endless}"
    for arguments in (["--data", str(data), query], ["--data", str(data), "shell"]):
        terminal = Terminal(
            ROOT, "bag", *arguments, folder=data.parent, columns=100, stdin=subprocess.PIPE
        )
        if "shell" in arguments:
            terminal.process.stdin.write(f"{query};\n".encode())
            terminal.process.stdin.flush()
        busy(terminal.process)
        terminal.process.send_signal(signal.SIGINT)
        status, text = terminal.finish(
            b"select 40 + 2 as answer;\nexit\n" if "shell" in arguments else b""
        )
        assert "Traceback" not in text
        assert (status, "42" in text) == (
            (0, True) if "shell" in arguments else (-signal.SIGINT, False)
        ), text


def busy(process: subprocess.Popen) -> None:
    """Return once a process has worked for longer than starting takes."""
    worker = psutil.Process(process.pid)
    while worker.cpu_times().user < 4:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["from broad", "--rows", "-5"], "'-5' is not a number of rows, 1 to"),
        (["from broad", "--rows", "9" * 20], "is not a number of rows, 1 to"),
        (["latin.sql"], "latin.sql is not text in UTF-8: byte 8 is wrong"),
        (["-"], "standard input is not text in UTF-8: byte 8 is wrong"),
    ],
)
def test_a_mistake_is_a_sentence(
    data: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(data.parent)
    Path("latin.sql").write_bytes("select 'é'".encode("latin-1"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("latin.sql").read_bytes())))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE)]
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGPIPE), before, strict=True):
            signal.signal(number, handler)
    assert message in f"{ended.value.code} {capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-3", -3),
        ("0", 0),
        ("2.5", 2.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("1E3", 1000.0),
        ("e3", "e3"),
        ("1e-3", 0.001),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("", ""),
    ],
)
def test_a_parameter_is_a_number_if_it_is_written_as_one(text: str, value: object):
    parameter = parameters([f"x={text}"])["x"]
    assert (type(parameter), parameter) == (type(value), value)


@pytest.mark.parametrize("arguments", [["tables"], ["from broad"], ["--help"]])
def test_a_closed_pipe_ends_bag_quietly(data: Path, arguments: list[str]):
    reading, writing = os.pipe()
    os.close(reading)  # as when head has seen enough
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [BAG, "--data", data, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert process.communicate()[1] == b""
    assert process.returncode == -signal.SIGPIPE


def test_head_ends_a_long_answer_quietly(data: Path):
    command = f"bag --data {data} --csv 'from range(1000000)' | head -n 2; exit ${{PIPESTATUS[0]}}"
    done = run_in(ROOT, "bash", "-c", command, check=False)
    assert done.stdout == "range\n0\n"
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE


def test_a_system_without_closed_pipes_as_signals_has_bag_too():
    code = (
        "import signal, sys; del signal.SIGPIPE; sys.argv = ['bag', '--help']; from "
        "stages.lib.console import bag; bag.main()"
    )
    assert "examples:" in run_in(ROOT, "python", "-c", code).stdout


def test_a_parameter_that_the_shell_has_taken_is_said_with_the_way_out(data: Path):
    quoted = (
        f"PYTHONPATH={ROOT} bag --data {data} --csv 'select column_00 from broad where column_00 = "
        f"$text' -p text='value 0'"
    )
    assert run_in(ROOT, "bash", "-c", quoted).stdout == "column_00\nvalue 0\n"
    taken = run_in(
        ROOT,
        "bash",
        "-c",
        quoted.replace("'select", '"select').replace("$text'", '$text"'),
        check=False,
    )
    assert taken.returncode == 1
    assert taken.stderr.startswith(
        "bag: $text is not in the query: in double quotes the shell replaces it; "
    )
