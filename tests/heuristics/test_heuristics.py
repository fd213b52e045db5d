"""The catalogue: names have the right predicates, counts are the study's, mistakes are named."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics import catalogue as stage
from stages.lib.core.settings import ParamsError, check
from stages.lib.heuristics.catalogue_grid import Heuristics
from stages.lib.heuristics.names import FORMS, HeuristicError, parse
from stages.lib.sql import stage as query
from stages.lib.sql.database import Database
from tests.micro import ROOT, SHIPPED, changed, merged
from tests.micro import SETTINGS as MICRO

SETTINGS = SHIPPED["heuristics"]
GRIDS = check(Heuristics, SETTINGS).grids
QUANTITIES = ("op1", "op2", "result")
Cell = tuple[int, int, int]
number = st.integers(0, 400)


def has_digits(value: int, pattern: str) -> bool:
    """Whether a number has at most three digits, and each is as in the pattern, or free (.)."""
    digits = f"{value:03}"
    pairs = zip(pattern, digits, strict=False)
    return len(digits) == 3 and all(wanted in (".", digit) for wanted, digit in pairs)


@st.composite
def heuristics(draw: st.DrawFn) -> tuple[str, str, Callable[[Cell], bool]]:
    """A name, its kind, and its meaning in plain Python."""
    at, kind = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from(sorted(FORMS)))
    name = QUANTITIES[at]
    a, n, m = draw(number), draw(st.integers(2, 60)), draw(st.integers(0, 59))
    b, other = a + draw(number), draw(number)
    digits = draw(st.text(".0123456789", min_size=3, max_size=3))
    place, total = draw(st.sampled_from([1, 10, 100])), draw(st.integers(0, 18))
    carry, column = draw(st.booleans()), max(place, 10)
    with_carry = "with" if carry else "without"
    made: dict[str, tuple[str, Callable[[Cell], bool]]] = {
        "range": (f"{name} in {a}..{b}", lambda c: a <= c[at] <= b),
        "modulo": (f"{name} mod {n} = {m}", lambda c: c[at] % n == m),
        "pattern": (f"{name} ~ {digits}", lambda c: has_digits(c[at], digits)),
        "value": (f"{name} = {a}", lambda c: c[at] == a),
        "identical": ("op1 = op2", lambda c: c[0] == c[1]),
        "multi-result": (f"{name} in {{{a}, {other}}}", lambda c: c[at] in (a, other)),
        "period": (f"{name} mod {n} in {m}..{m + 7}", lambda c: m <= c[at] % n <= m + 7),
        "both ranges": (
            f"op1 in {a}..{b} and op2 in {other}..{b}",
            lambda c: a <= c[0] <= b and other <= c[1] <= b,
        ),
        "both modulo": (
            f"op1 mod {n} = {m} and op2 mod 3 = 1",
            lambda c: c[0] % n == m and c[1] % 3 == 1,
        ),
        "digit sum": (
            f"digits {place} of op1 and op2 sum to {total} {with_carry} carry",
            lambda c: (
                c[0] // place % 10 + c[1] // place % 10 == total
                and (c[0] % place + c[1] % place >= place) == carry
            ),
        ),
        "carry": (f"carry into {column}", lambda c: c[0] % column + c[1] % column >= column),
        "borrow": (f"borrow from {column}", lambda c: c[0] % column < c[1] % column),
    }
    text, means = made[kind]
    return text, kind, means


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, list[Cell]]:
    op1, op2 = np.mgrid[0:300:7, 0:300:11].reshape(2, -1)
    listed = np.stack([op1, op2, op1 + op2], axis=1).tolist()
    listed += [[5, 5, 10], [99, 1, 100], [13, 288, 301], [33, 40, 1320], [99, 101, 9999]]
    listed += [[999, 0, 999], [999, 1, 1000], [999, 235, 1234], [999, 999, 1998]]
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    table = pl.DataFrame(listed, QUANTITIES, orient="row")
    table.cast(pl.Int32).write_parquet(path)
    return Database({"cells": [path]}, threads=1), list(map(tuple, listed))


def selected(database: Database, name: str) -> list[Cell]:
    """The cells that satisfy the predicate of a name."""
    predicate = parse(name).predicate
    return sorted(database.sql(f"select op1, op2, result from cells where {predicate}").fetchall())


@settings(max_examples=200, deadline=None)
@given(drawn=heuristics())
def test_a_predicate_means_what_the_name_says(
    cells: tuple[Database, list[Cell]], drawn: tuple[str, str, Callable[[Cell], bool]]
):
    (database, listed), (name, kind, means) = cells, drawn
    assert (parse(name).name, parse(name).kind) == (name, kind)
    assert selected(database, name) == sorted(filter(means, listed))


@pytest.mark.parametrize("name", ["result ~ 12.", "result ~ 132", "result ~ ...", "op1 ~ 03."])
def test_a_pattern_has_three_digits_and_cuts_no_larger_number(
    cells: tuple[Database, list[Cell]], name: str
):
    """The results 1234 and 1320 are neither 12. nor 132, though they begin with these digits."""
    database, listed = cells
    quantity, pattern = name.split(" ~ ")
    at = QUANTITIES.index(quantity)
    expected = [cell for cell in listed if has_digits(cell[at], pattern)]
    assert expected
    assert selected(database, name) == sorted(expected)


@pytest.mark.parametrize(
    "name",
    [
        "op3 in 1..2",
        "op1 in 1..",
        "result mod x = 1",
        "op1 ~ 1",
        "",
        "op1 = op2 ",
        "op1 = 1; drop table cells",
    ],
)
def test_no_other_name_is_a_heuristic(name: str):
    with pytest.raises(HeuristicError, match="names look like"):
        parse(name)


LARGEST = {"add": 598, "subtract": 299, "multiply": 999, "divide": 299}
RANGES = {"add": (177, 89), "subtract": (89, 89), "multiply": (294, 89), "divide": (70, 70)}


@pytest.mark.parametrize("operator", LARGEST)
def test_the_papers_grid_has_the_papers_counts(operator: str):
    largest = {"op1": 299, "op2": 299, "result": LARGEST[operator]}
    names = list(stage.names(GRIDS["paper"], operator, largest))
    assert len(set(names)) == len(names) > 1000
    rows = [(heuristic.kind, heuristic.quantity) for heuristic in map(parse, names)]
    table = pl.DataFrame(rows, ["kind", "quantity"], orient="row")
    counts = {(kind, about): n for kind, about, n in table.group_by(pl.all()).len().rows()}
    results, operands = RANGES[operator]
    assert counts["range", "result"] == results
    assert counts["range", "op1"] == counts["range", "op2"] == operands
    for quantity in QUANTITIES:
        assert counts["modulo", quantity] == 83
        assert counts["pattern", quantity] == 220
    assert counts["identical", "both"] == 1


@pytest.mark.parametrize("grid", GRIDS)
def test_every_name_of_every_grid_can_be_parsed(grid: str):
    for operator, largest in LARGEST.items():
        limits = {"op1": 299, "op2": 299, "result": largest}
        names = list(stage.names(GRIDS[grid], operator, limits))
        parsed = list(map(parse, names))
        assert [heuristic.name for heuristic in parsed] == names
        if operator == "divide":
            of_result = [heuristic.kind for heuristic in parsed if heuristic.quantity == "result"]
            assert not {*of_result} & {*GRIDS[grid].not_of_quotients}


def test_the_table_counts_its_cells(micro: Path):
    table = pl.read_parquet(micro / "data/heuristics/heuristics.parquet")
    cells = pl.read_parquet(micro / "data/corpus/cells.parquet")
    # polars has no regexp_full_match
    for row in table.filter(pl.col("kind") != "pattern").sample(60, seed=0).iter_rows(named=True):
        own = cells.filter(operator=row["operator"])
        satisfied = own.sql(f"select * from self where {row['predicate']}")
        assert row["cells"] == len(satisfied), row["heuristic"]
        assert row["share"] == pytest.approx(row["cells"] / len(own))
        assert row["usable"] == (0 < row["cells"] < len(own))
    assert table.filter(~pl.col("usable")).height > 0  # 20 operands leave many ranges empty


def project(folder: Path, monkeypatch: pytest.MonkeyPatch, custom: dict[str, str]) -> None:
    """Enter a folder with micro settings, their cells, and these custom heuristics."""
    (folder / "stages/corpus").mkdir(parents=True)
    for name in ("cells.sql", "dvc.yaml"):
        (folder / "stages/corpus" / name).symlink_to(ROOT / "stages/corpus" / name)
    own = merged(MICRO, {"heuristics": {"custom": custom}})
    (folder / "params.yaml").write_text(yaml.safe_dump(changed(own)))
    monkeypatch.chdir(folder)
    query.main("corpus/cells")


def test_a_custom_heuristic_is_one_predicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project(tmp_path, monkeypatch, {"both even": "op1 % 2 = 0 and op2 % 2 = 0"})
    stage.main()
    table = pl.read_parquet("data/heuristics/heuristics.parquet")
    row = table.filter(operator="add", heuristic="both even").row(0, named=True)
    assert (row["kind"], row["cells"]) == ("custom", 100)


@pytest.mark.parametrize("predicate", ["op3 = 1", "op1 = ", "op1", "(select 1"])
def test_a_wrong_predicate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predicate: str
):
    project(tmp_path, monkeypatch, {"mine": predicate})
    message = r"heuristics.custom.mine = .* must be a SQL condition on op1, op2 and result"
    with pytest.raises(SystemExit, match=message):
        stage.main()


def test_an_unknown_grid_is_named():
    message = "grid is 'papre', but grids has paper, code, extended"
    with pytest.raises(ParamsError, match=message):
        check(Heuristics, {**SETTINGS, "grid": "papre"}, "heuristics")


@given(heuristics())
@settings(max_examples=50, deadline=None)
def test_a_custom_heuristic_cannot_take_the_name_of_another(
    drawn: tuple[str, str, Callable[[Cell], bool]],
):
    name, *_ = drawn
    custom = {"mine": "op1 = 3", name: "op1 = 3"}
    message = f"the custom name {re.escape(repr(name))} is the name of a heuristic"
    with pytest.raises(ParamsError, match=message):
        check(Heuristics, {**SETTINGS, "custom": custom}, "heuristics")


@pytest.mark.parametrize("name", ["", " ", "mine ", "my\nown"])
def test_a_custom_heuristic_has_a_printable_name(name: str):
    message = "must be printable text without blanks at its ends"
    with pytest.raises(ParamsError, match=message):
        check(Heuristics, {**SETTINGS, "custom": {name: "op1 = 3"}}, "heuristics")
