"""The catalogue: names mean what they say, counts are those of the study, mistakes are named."""

import re
from collections.abc import Callable
from pathlib import Path

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
Cell = tuple[int, int, int]
number = st.integers(0, 400)
quantity = st.sampled_from([("op1", 0), ("op2", 1), ("result", 2)])


@st.composite
def heuristics(draw: st.DrawFn) -> tuple[str, str, Callable[[Cell], bool]]:
    """A name, its kind, and what it means in plain Python."""
    (name, at), kind = draw(quantity), draw(st.sampled_from(sorted(FORMS)))
    a, n, m = draw(number), draw(st.integers(2, 60)), draw(st.integers(0, 59))
    b, other = a + draw(number), draw(number)
    digits = "".join(draw(st.sampled_from(".0123456789")) for _ in range(3))
    place, total, carry = (
        draw(st.sampled_from([1, 10, 100])),
        draw(st.integers(0, 18)),
        draw(st.booleans()),
    )
    column = max(place, 10)
    made: dict[str, tuple[str, Callable[[Cell], bool]]] = {
        "range": (f"{name} in {a}..{b}", lambda c: a <= c[at] <= b),
        "modulo": (f"{name} mod {n} = {m}", lambda c: c[at] % n == m),
        "pattern": (
            f"{name} ~ {digits}",
            lambda c: (
                len(f"{c[at]:03}") == 3
                and all(d in (".", e) for d, e in zip(digits, f"{c[at]:03}", strict=True))
            ),
        ),
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
            f"digits {place} of op1 and op2 sum to {total} {'with' if carry else 'without'} carry",
            lambda c: (
                c[0] // place % 10 + c[1] // place % 10 == total
                and (c[0] % place + c[1] % place >= place) == carry
            ),
        ),
        "carry": (f"carry into {column}", lambda c: c[0] % column + c[1] % column >= column),
        "borrow": (f"borrow from {column}", lambda c: c[0] % column < c[1] % column),
    }
    return made[kind][0], kind, made[kind][1]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, list[Cell]]:
    listed = [(a, b, a + b) for a in range(0, 300, 7) for b in range(0, 300, 11)] + [
        (5, 5, 10),
        (99, 1, 100),
        (13, 288, 301),
    ]
    listed += [(999, b, 999 + b) for b in (0, 1, 235, 999)] + [(33, 40, 1320), (99, 101, 9999)]
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    pl.DataFrame(
        listed, schema={"op1": pl.Int32, "op2": pl.Int32, "result": pl.Int32}, orient="row"
    ).write_parquet(path)
    return Database({"cells": [path]}, threads=1), listed


@settings(max_examples=200, deadline=None)
@given(drawn=heuristics())
def test_a_name_means_what_it_says(
    cells: tuple[Database, list[Cell]], drawn: tuple[str, str, Callable[[Cell], bool]]
):
    name, kind, means = drawn
    database, listed = cells
    heuristic = parse(name)
    assert (heuristic.name, heuristic.kind) == (name, kind)
    found = database.sql(
        f"select op1, op2, result from cells where {heuristic.predicate}"
    ).fetchall()
    assert sorted(found) == sorted(cell for cell in listed if means(cell))


def test_a_pattern_is_of_three_digits_and_cuts_no_larger_number(cells: tuple[Database, list[Cell]]):
    """999 + 235 = 1234 and 33 x 40 = 1320; neither is 12. nor 132, whose digits they begin with."""
    database, listed = cells
    for name in ("result ~ 12.", "result ~ 132", "result ~ ...", "op1 ~ 03."):
        at, pattern = name.split(" ~ ")
        of = {"op1": 0, "result": 2}[at]
        means = [
            c
            for c in listed
            if c[of] < 1000
            and all(d in (".", e) for d, e in zip(pattern, f"{c[of]:03}", strict=True))
        ]
        found = database.sql(
            f"select op1, op2, result from cells where {parse(name).predicate}"
        ).fetchall()
        assert sorted(found) == sorted(means)
        assert means


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


@pytest.mark.parametrize(
    ("operator", "results", "operands"),
    [("add", 177, 89), ("subtract", 89, 89), ("multiply", 294, 89), ("divide", 70, 70)],
)
def test_the_papers_grid_has_the_papers_counts(operator: str, results: int, operands: int):
    names = list(
        stage.names(GRIDS["paper"], operator, {"op1": 299, "op2": 299, "result": LARGEST[operator]})
    )
    assert len(set(names)) == len(names) > 1000
    found = pl.DataFrame(
        {"kind": [parse(n).kind for n in names], "quantity": [parse(n).quantity for n in names]}
    )
    counts = {
        key: n
        for *key, n in found.group_by("kind", "quantity").len().iter_rows()
        for key in [tuple(key)]
    }
    for quantity in ("op1", "op2", "result"):
        assert counts["range", quantity] == (results if quantity == "result" else operands)
        assert counts["modulo", quantity] == 83
        assert counts["pattern", quantity] == 220
    assert counts["identical", "both"] == 1


@pytest.mark.parametrize("grid", GRIDS)
def test_every_name_of_every_grid_is_read_back(grid: str):
    for operator, largest in LARGEST.items():
        names = list(
            stage.names(GRIDS[grid], operator, {"op1": 299, "op2": 299, "result": largest})
        )
        assert [parse(name).name for name in names] == names
        quotients = {
            parse(name).kind
            for name in names
            if operator == "divide" and parse(name).quantity == "result"
        }
        assert not quotients & set(GRIDS[grid].not_of_quotients)


def test_the_table_counts_its_cells(micro: Path):
    table = pl.read_parquet(micro / "data/heuristics/heuristics.parquet")
    cells = pl.read_parquet(micro / "data/corpus/cells.parquet")
    for row in table.sample(60, seed=0).iter_rows(named=True):
        of = cells.filter(operator=row["operator"])
        true = (
            of.sql(f"select * from self where {row['predicate'].replace('::varchar', '')}")
            if row["kind"] != "pattern"
            else None
        )
        if true is not None:
            assert row["cells"] == len(true), row["heuristic"]
        assert row["share"] == pytest.approx(row["cells"] / len(of))
        assert row["usable"] == (0 < row["cells"] < len(of))
    assert table.filter(~pl.col("usable")).height > 0  # 20 operands leave many ranges empty


def project(folder: Path, monkeypatch: pytest.MonkeyPatch, custom: dict[str, str]) -> None:
    """A folder with micro settings, of which these heuristics are, and their cells, in which the stage runs."""
    (folder / "stages/corpus").mkdir(parents=True)
    for name in ("cells.sql", "dvc.yaml"):
        (folder / "stages/corpus" / name).symlink_to(ROOT / "stages/corpus" / name)
    (folder / "params.yaml").write_text(
        yaml.safe_dump(changed(merged(MICRO, {"heuristics": {"custom": custom}})))
    )
    monkeypatch.chdir(folder)
    query.main("corpus/cells")


def test_a_heuristic_of_ones_own_is_one_predicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project(tmp_path, monkeypatch, {"both even": "op1 % 2 = 0 and op2 % 2 = 0"})
    stage.main()
    own = (
        pl.read_parquet("data/heuristics/heuristics.parquet")
        .filter(operator="add", heuristic="both even")
        .row(0, named=True)
    )
    assert (own["kind"], own["cells"]) == ("custom", 100)


@pytest.mark.parametrize("predicate", ["op3 = 1", "op1 = ", "op1", "(select 1"])
def test_a_wrong_predicate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predicate: str
):
    project(tmp_path, monkeypatch, {"mine": predicate})
    with pytest.raises(
        SystemExit,
        match=r"heuristics.custom.mine = .* must be a SQL condition on op1, op2 and result",
    ):
        stage.main()


def test_an_unknown_grid_is_named():
    with pytest.raises(ParamsError, match="grid is 'papre', but grids has paper, code, extended"):
        check(Heuristics, {**SETTINGS, "grid": "papre"}, "heuristics")


@given(heuristics())
@settings(max_examples=50, deadline=None)
def test_a_custom_heuristic_cannot_take_the_name_of_another(
    drawn: tuple[str, str, Callable[[Cell], bool]],
):
    with pytest.raises(
        ParamsError,
        match=f"the custom name {re.escape(repr(drawn[0]))} is the name of a heuristic",
    ):
        check(
            Heuristics,
            {**SETTINGS, "custom": {"mine": "op1 = 3", drawn[0]: "op1 = 3"}},
            "heuristics",
        )


@pytest.mark.parametrize("name", ["", " ", "mine ", "my\nown"])
def test_a_custom_heuristic_has_a_name_that_can_be_printed(name: str):
    with pytest.raises(ParamsError, match="must be printable text without blanks at its ends"):
        check(Heuristics, {**SETTINGS, "custom": {name: "op1 = 3"}}, "heuristics")
