"""`bag plot` draws the picture that a query's columns call for, into a file."""

import re
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from stages.lib.console import plot
from stages.lib.sql.database import Database
from tests.conftest import bag_in
from tests.micro import ROOT

GRID = "range(3) as a(op1), range(4) as b(op2)"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plot") / "data"
    table = {"subject": ["a", "a", "b"], "operator": ["add", "divide", "add"]}
    table |= {"accuracy": [0.5, 0.25, None]}
    pl.DataFrame(table).write_parquet(folder / "a/store/accuracy.parquet", mkdir=True)
    return folder


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("select i, i * i as y from range(5) as n(i)", "line"),
        ("select i / 4 as x, -i as y from range(5) as n(i)", "line"),
        ("select sin(i) as x, i as y from range(5) as n(i)", "scatter"),
        ("select i % 2 as x, i as y from range(5) as n(i)", "scatter"),
        ("select i // 2 as x, i as y, i % 2 as s from range(6) as n(i)", "line"),
        ("select i // 2 as x, i / 3 as y, 'v' || (i % 2) as s from range(6) as n(i)", "line"),
        ("select 'v' || (i) as x, i as y from range(5) as n(i)", "bar"),
        ("select 'a' as x, i as y from range(5) as n(i)", "scatter"),
        ("select 'v' || (i // 2) as x, i as y, i % 2 > 0 as s from range(6) as n(i)", "bar"),
        (f"select op1, op2, op1 + op2 as result from {GRID}", "map"),
        (f"select op1 as layer, op2 as head, op1 / 2 as effect from {GRID}", "map"),
        (f"select op1 as layer, 'v' || (op2) as s, sum(1)::hugeint as n from {GRID} group by all",
         "map"),
        (f"select op1 / 2 as x, op2 as y, op1 / 3 as z from {GRID}", "scatter"),
    ],
)  # fmt: skip
def test_types_choose_the_picture(query: str, kind: str):
    assert plot.kind_of(plot.rows(Database({}).sql(query))) == kind


@pytest.mark.parametrize(
    ("suffix", "start", "query"),
    [
        ("png", b"\x89PNG", f"select op1, op2, op1 - op2 as difference from {GRID}"),
        ("svg", b"<?xml", "select operator, accuracy, subject from accuracy"),
        ("pdf", b"%PDF", "select i, i * 1.5 as y, i // 9 as s from range(18) as n(i)"),
        ("png", b"\x89PNG", f"select 'v' || (op1) as x, op2, 1e5 * op1 as y from {GRID}"),
    ],
)
def test_a_picture_is_in_the_file_of_its_suffix(
    data: Path, tmp_path: Path, suffix: str, start: bytes, query: str
):
    file = tmp_path / f"picture.{suffix}"
    done = bag_in(ROOT, "plot", query, "-o", str(file), "--data", str(data))
    assert re.fullmatch(rf"{file}: \w+ of \d+ rows\n", done.stdout), done.stderr
    assert file.read_bytes().startswith(start)


def test_op1_of_a_neuron_map_is_down_and_op2_across(tmp_path: Path):
    """Draw 1 for large values of op1: whatever the order of the columns, these are below."""
    query = "select op2, op1, (op1 > 4)::int as value from range(10) as a(op1), range(10) as b(op2)"
    file = tmp_path / "map.png"
    frame = plot.rows(Database({}).sql(query))
    plot.save(plot.KINDS["map"](frame, {name: name for name in frame.columns}), file)
    grey = Image.open(file).convert("L")
    x, y = grey.width // 2 - 50, grey.height // 2
    assert grey.getpixel((x, y - 100)) > 200
    assert grey.getpixel((x, y + 100)) < 100


@pytest.mark.parametrize("kind", ["line", "scatter", "bar"])
def test_axes_of_whole_numbers_have_whole_ticks(kind: str):
    x = "'v' || (i)" if kind == "bar" else "i"
    frame = plot.rows(Database({}).sql(f"select {x} as x, i as y from range(3) as n(i)"))
    [axis] = plot.KINDS[kind](frame, {name: name for name in frame.columns}).axes
    ticks = [*axis.get_xticks(), *axis.get_yticks()]
    assert [tick for tick in ticks if tick % 1] == []


def test_labels_have_the_meaning_that_the_query_s_tables_give(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    columns = ["operator", "accuracy", "other"]
    texts = plot.labels("select operator, accuracy, 1 as other from accuracy", columns)
    assert texts["operator"].startswith("operator: add")
    assert texts["accuracy"].startswith("accuracy: share of cells")
    assert texts["other"] == "other"
    assert plot.labels("select 1 as op1", ["op1"]) == {"op1": "op1"}


@pytest.mark.parametrize(
    ("query", "more", "message"),
    [
        (
            "select 1 as x",
            [],
            "a plot takes two or three columns, x, y and perhaps a series, not 1",
        ),
        ("select 1 as x, [1] as y", [], "the column y is of type List"),
        ("select 1 as x, 'a' as y", [], "the column y is a text, and y is a number"),
        ("select 1 as x, null::int as y", [], "no rows without nulls"),
        ("from range(100) a(x), range(20) b(s)", ["--kind", "map"], "a map takes three columns"),
        ("select 0 as x, 1.5 as y, i as s from range(9) n(i)", ["--kind", "bar"], "9 values"),
        ("select 0 as x, 1 as y, 2.5 as z from range(2)", ["--kind", "map"], "several times"),
        ("select 'a' as x, 1 as y from range(2)", ["--kind", "bar"], "x occurs several times"),
        ("select i::varchar as x, 1 as y from range(101) n(i)", [], "101 rows, and a plot 100"),
        ("select 1, 2", ["-o", "a.gif"], "'a.gif' does not end in .png, .svg, .pdf"),
        ("select x", [], 'Referenced column "x"'),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    data: Path, tmp_path: Path, query: str, more: list[str], message: str
):
    file = tmp_path / "picture.png"
    done = bag_in(ROOT, "plot", query, "--data", str(data), "-o", str(file), *more)
    assert done.returncode != 0
    assert message in done.stderr
    assert not file.exists()
