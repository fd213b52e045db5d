"""What `bag` prints of rows that do not fit, on terminals of known widths, in pipes and in the shell."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import run_in
from tests.lib.terminals import Terminal
from tests.micro import ROOT

NAMES = [f"column_{number:02}" for number in range(20)]  # 9 wide and a blank on both sides, between 21 lines
WIDE = 20 * 11 + 21
BAG = Path(sys.executable).parent / "bag"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one table: of 20 columns, one row with its column's number in each, one with `value <number>`."""
    folder = tmp_path_factory.mktemp("project") / "data"
    pl.DataFrame({name: [str(number), f"value {number}"] for number, name in enumerate(NAMES)}).write_parquet(
        folder / "corpus/broad.parquet", mkdir=True
    )
    return folder


def on_terminal(data: Path, *arguments: str, columns: int) -> str:
    status, text = Terminal(ROOT, "bag", "--data", str(data), *arguments, columns=columns).finish()
    assert status == 0, text
    return text


def printed(text: str) -> list[str]:
    """The columns of which a table shows values."""
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
    query = "select repeat('long ', 100) || number as value, number from range(40) as numbers(number)"
    text = on_terminal(data, query, columns=80)
    assert "bag: values that end in … are cut; --wide prints them whole" in text
    assert "long 39 │" not in text
    wide = on_terminal(data, query, "--wide", columns=80)
    assert "long 39 │" in wide
    assert "bag:" not in wide


def test_records_are_a_line_for_each_column(data: Path):
    text = on_terminal(data, "select *, null as nothing, e'two\\nlines' as text from broad order by column_00", "--records", columns=80)
    first, second = re.split(r"─── record \d ───\n", text)[1:]
    assert first.splitlines()[:2] == ["column_00  0", "column_01  1"]
    assert first.splitlines()[20:] == ["nothing    NULL", "text       two", "           lines", ""]
    assert [line.split("  ", 1) for line in second.splitlines()[:20]] == [[name, f"value {n}"] for n, name in enumerate(NAMES)]


def test_no_more_records_than_rows_are_asked_for(data: Path):
    text = on_terminal(data, "from range(5)", "--records", "--rows", "3", columns=80)
    assert re.findall(r"record (\d)", text.split("bag:")[0]) == ["1", "2", "3"]
    assert "bag: only the first 3 records are printed; --rows says how many" in text
    assert "bag:" not in on_terminal(data, "from range(5)", "--records", "--rows", "5", columns=80)
    assert on_terminal(data, "from range(0)", "--records", columns=80) == "0 rows\n"


def test_a_pipe_gets_every_column_and_is_told_of_missing_rows(data: Path):
    whole = run_in(ROOT, "bag", "--data", str(data), "from broad")
    assert printed(whole.stdout) == NAMES
    assert whole.stderr == ""
    some = run_in(ROOT, "bag", "--data", str(data), "from range(50)", "--rows", "10")
    assert some.stderr == "bag: not all rows are printed; --rows says how many, --csv prints all\n"


def test_the_shell_prints_as_it_is_told(data: Path):
    terminal = Terminal(ROOT, "bag", "--data", str(data), "shell", folder=data.parent, columns=100, stdin=subprocess.PIPE)
    typed = b"from broad;\nwide\nfrom broad;\nrecords;\nfrom broad;\ntable\nselect 42\nas answer;\nexit\n"
    status, text = terminal.finish(typed)
    assert status == 0
    cut, whole, answer = re.findall("┌.*?└", text, re.DOTALL)
    assert (
        f"bag: {20 - len(printed(cut))} of 20 columns are left out; wide prints them whole, records a line `column  value` for each" in text
    )
    assert len(printed(cut)) < 20
    assert printed(whole) == NAMES
    assert "42" in answer
    assert "column_19  value 19" in text.split("record 2")[1]


@pytest.mark.parametrize("arguments", [["tables"], ["from broad"], ["--help"]])
def test_a_closed_pipe_ends_bag_quietly(data: Path, arguments: list[str]):
    reading, writing = os.pipe()
    os.close(reading)  # as when head has seen enough
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([BAG, "--data", data, *arguments], cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate()[1] == b""
    assert process.returncode == -signal.SIGPIPE


def test_head_ends_a_long_answer_quietly(data: Path):
    command = f"bag --data {data} --csv 'from range(1000000)' | head -n 2; exit ${{PIPESTATUS[0]}}"
    done = run_in(ROOT, "bash", "-c", command, check=False)
    assert done.stdout == "range\n0\n"
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE
