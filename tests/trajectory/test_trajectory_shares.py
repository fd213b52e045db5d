"""Shares of the last checkpoint's bag, against chance, and by type of heuristic."""

from collections.abc import Iterable
from itertools import product

import polars as pl
import pytest

from tests.bag import knocked
from tests.bag.knocked import ENDS, EVEN
from tests.made import OPERATORS, Tables
from tests.trajectory import trajectories
from tests.trajectory.trajectories import (
    COMMON,
    HERE,
    LAST,
    PAIRS,
    POINT,
    THERE,
    TYPES,
    relabelled,
    units,
)

TYPE = ["operator", "quantity", "kind"]


@pytest.fixture(scope="module")
def both() -> pl.DataFrame:
    return trajectories.both()


@pytest.fixture(scope="module")
def tables(both: pl.DataFrame) -> Tables:
    """Return both tables for a model without prompts."""
    none = trajectories.interventions(both.filter(subject=POINT), PAIRS.clear())
    bag = trajectories.measured(both, PAIRS.clear(), none, knocked.at_random(0))["trajectory"]
    return {"trajectory": bag, "kinds": trajectories.kinds(both)}


def pairs_of(standing: Iterable[tuple], operator: str, heuristic: str | None = None) -> int:
    """Return the number of pairs of neuron and heuristic of an operator, or of one heuristic."""
    return sum(o == operator and heuristic in (None, h) for o, _, _, h in standing)


def test_pairs_and_neurons_are_counted(tables: Tables):
    shown, accuracy = tables["trajectory"], trajectories.accuracy()
    keys = product([POINT], [LAST], [750], OPERATORS)
    assert shown.select("subject", "last", "step", "operator").rows() == list(keys)
    for row in shown.iter_rows(named=True):
        assert row["pairs"] == pairs_of(HERE, row["operator"])
        shared = pairs_of(COMMON, row["operator"]) / pairs_of(THERE, row["operator"])
        assert row["shared_with_last"] == pytest.approx(shared)
        assert row["neurons"] == len(units(HERE, row["operator"]))
        assert row["neurons_shared"] == len(units(COMMON, row["operator"]))
        for split, name in (("train", "trained"), ("held-out", "held_out")):
            given = accuracy.filter(operator=row["operator"], split=split)
            assert [row[f"accuracy_{name}"]] == given["accuracy"].to_list()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("types", [list(TYPES), *([kind] for kind in TYPES)], ids=["all", *TYPES])
def test_chance_is_what_relabelled_neurons_share(tables: Tables, operator: str, types: list[str]):
    quantity, kind = TYPES[types[0]]
    shown = (
        tables["trajectory"]
        if len(types) > 1
        else tables["kinds"].filter(quantity=quantity, kind=kind)
    )
    [share] = shown.filter(operator=operator)["shared_by_chance"]
    last_pairs = sum(pairs_of(THERE, operator, heuristic) for heuristic in types)
    shared = relabelled(HERE, THERE, operator, types)
    assert 0 < shared.std() < last_pairs
    assert abs(share * last_pairs - shared.mean()) < 4 * shared.std() / len(shared) ** 0.5


def test_types_are_counted(tables: Tables):
    expected = {}
    for operator in OPERATORS:
        for heuristic, names in TYPES.items():
            pairs = pairs_of(HERE, operator, heuristic)
            last_pairs = pairs_of(THERE, operator, heuristic)
            shared = pairs_of(COMMON, operator, heuristic)
            share = pytest.approx(shared / last_pairs)
            expected[operator, *names] = pairs, last_pairs, shared, share
    measures = ["pairs", "last_pairs", "shared", "shared_with_last"]
    assert tables["kinds"].select(*TYPE, *measures).rows() == [
        (*names, *counts) for names, counts in sorted(expected.items())
    ]


def test_a_type_that_is_not_there_yet_shares_nothing_and_one_that_is_gone_has_no_share(
    both: pl.DataFrame,
):
    gone = {POINT: EVEN, LAST: ENDS}
    shown = trajectories.kinds(
        both.filter(pl.col("heuristic") != pl.col("subject").replace_strict(gone))
    )
    assert shown.height == len(OPERATORS) * len(TYPES)
    measures = ["pairs", "shared", "shared_with_last", "shared_by_chance"]
    assert set(shown.filter(kind=TYPES[EVEN][1]).select(measures).rows()) == {(0, 0, 0, 0)}
    assert set(shown.filter(kind=TYPES[ENDS][1]).select("last_pairs", *measures[2:]).rows()) == {
        (0, None, None)
    }
