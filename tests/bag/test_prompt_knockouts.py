"""Knock-outs by prompt: the real stage's choice of neurons for every prompt."""

from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.bag.arms import ARMS
from tests.bag import knocked
from tests.bag.knocked import EFFECTS, ENDS, EVEN, LOW, MEANS, SET, Units, listed, standing, written
from tests.made import OPERATORS

COUNTS = [2, 5, 30]
HEURISTICS = [EVEN, LOW, ENDS, SET]


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=8)


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return neurons 0 to 31 of each layer with one or two heuristics; layer 0 is not late.

    Neurons from 24 on have them by the criterion scored alone.
    """
    rows = []
    for n, operator, layer in product(range(32), OPERATORS, (0, 1, 2)):
        rows.append((operator, layer, n, HEURISTICS[n % 4]))
        if n % 3 == 0:
            rows.append((operator, layer, n, HEURISTICS[(n + 1) % 4]))
    scored = standing(rows, "threshold", late=1)
    called = standing(rows, "label", "fdr", late=1).filter(pl.col("neuron") < 24)
    return pl.concat([called, scored]).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def table(members: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    return knocked.prompt_knockouts(pairs, members, COUNTS)


@pytest.fixture(scope="module")
def silenced(table: pl.DataFrame) -> dict[tuple, Units]:
    """Return (pair, criterion, arm, neurons per layer) -> what zero and mean ablate alike."""
    return knocked.ablated(table, "pair", "criterion", "arm", "neurons_per_layer")


def test_every_evaluation_prompt_has_all_arms(table: pl.DataFrame, pairs: pl.DataFrame):
    keys = ["operator", "pair", "criterion", "arm", "neurons_per_layer", "replacement"]
    numbers = table.select("intervention", *keys).unique()
    expected = {(o, None, None, "none", None, None) for o in OPERATORS}
    choices = list(product(("fdr", "threshold"), ARMS, COUNTS, ("zero", "mean")))
    for prompt in listed(pairs, split="evaluation"):
        expected |= {(prompt.operator, prompt.pair, *choice) for choice in choices}
    assert set(numbers.select(keys).rows()) == expected
    assert len(numbers) == len(expected)


def test_each_arm_has_the_neurons_that_it_should(
    silenced: dict[tuple, Units], members: pl.DataFrame, pairs: pl.DataFrame
):
    bags = members.filter("late").partition_by(["operator", "criterion"], as_dict=True)
    for prompt in listed(pairs, split="evaluation"):
        is_own = pl.col("heuristic").is_in([h for h in HEURISTICS if MEANS[h](prompt)])
        for criterion in ("fdr", "threshold"):
            bag = bags[prompt.operator, criterion]
            mine = set(bag.filter(is_own).select("layer", "neuron").rows())
            others = set(bag.filter(~is_own).select("layer", "neuron").rows())
            among = {
                "heuristic": mine,
                "count": mine,
                "control": others - mine,
                "contaminated": others,
                "matched": EFFECTS.keys() - mine,
            }
            for arm in ARMS:
                two = silenced[prompt.pair, criterion, arm, 2]
                assert two <= silenced[prompt.pair, criterion, arm, 5]
                for count in COUNTS:
                    units = silenced[prompt.pair, criterion, arm, count]
                    assert units <= among[arm]
                    for layer in (1, 2):  # as many in every arm and layer where there are enough
                        own = knocked.in_layer(mine, layer)
                        available = knocked.in_layer(among[arm], layer)
                        wanted = min(count, len(own), len(available))
                        assert len(knocked.in_layer(units, layer)) == wanted


def partners(order: Iterable[tuple[int, int]], free: Units) -> Units:
    """For each neuron in turn, that of nearest effect among those that are still free."""
    matched: Units = set()
    for unit in order:
        matched.add(min(free - matched, key=lambda other: abs(EFFECTS[other] - EFFECTS[unit])))
    return matched


def test_partners_are_matched_by_their_effect(silenced: dict[tuple, Units]):
    for (pair, criterion, arm, count), units in silenced.items():
        if (arm, count) == ("heuristic", 2):
            matched = silenced[pair, criterion, "matched", 2]
            others = EFFECTS.keys() - silenced[pair, criterion, "heuristic", 30]
            for layer in (1, 2):
                drawn, free = knocked.in_layer(matched, layer), knocked.in_layer(others, layer)
                orders = permutations(knocked.in_layer(units, layer))  # either may come first
                assert drawn in [partners(order, free) for order in orders]


def test_contaminated_controls_hold_associated_neurons_and_others_do_not(
    silenced: dict[tuple, Units],
):
    with_own = set()
    for (pair, criterion, arm, _), units in silenced.items():
        if units & silenced[pair, criterion, "heuristic", 30]:
            with_own.add(arm)
    assert with_own == {"heuristic", "count", "contaminated"}


def test_the_executor_takes_them(table: pl.DataFrame):
    read = knocked.taken(table)
    assert [each.operator for each in read if each.pair is None] == OPERATORS
    assert knocked.replacements(read) == {"zero", "mean"}


def test_the_seed_changes_random_arms_alone(
    table: pl.DataFrame, members: pl.DataFrame, pairs: pl.DataFrame
):
    assert knocked.prompt_knockouts(pairs, members, COUNTS).equals(table)
    other = knocked.prompt_knockouts(pairs, members, COUNTS, seed=1)
    random = pl.col("arm").is_in(["control", "contaminated"])
    assert other.filter(~random).equals(table.filter(~random))
    assert not other.filter(random).equals(table.filter(random))


def test_without_late_heuristics_there_is_none(members: pl.DataFrame, pairs: pl.DataFrame):
    assert knocked.prompt_knockouts(pairs, members.clear(), COUNTS).is_empty()
    early = members.with_columns(late=pl.lit(False))
    assert knocked.prompt_knockouts(pairs, early, COUNTS).is_empty()


def test_an_operator_or_a_way_of_counting_without_heuristics_is_left_out(
    members: pl.DataFrame, pairs: pl.DataFrame
):
    some = members.filter(operator="subtract", criterion="threshold")
    few = knocked.prompt_knockouts(pairs, some, COUNTS)
    assert set(few.select("operator", "criterion").rows()) == {
        ("subtract", None),
        ("subtract", "threshold"),
    }
    assert len(knocked.taken(few)) == 1 + 40 * len(ARMS) * len(COUNTS) * 2


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_knocks_out_every_evaluation_prompt(micro: Path, name: str):
    members = written(micro, name, "heuristic_neurons").filter("late")
    table = written(micro, name, "prompt_knockout_interventions")
    params = yaml.safe_load((micro / "stages/bag/params.yaml").read_text())
    counts = params["prompt_knockouts"]["neurons_per_layer"]
    bags = set(
        members.filter(pl.col("criterion") != "label").select("operator", "criterion").rows()
    )
    evaluated = (
        written(micro, name, "pairs").filter(split="evaluation").select("operator", "pair").rows()
    )
    expected = set()
    for bag, (operator, pair), arm, count in product(bags, evaluated, ARMS, counts):
        if operator == bag[0]:
            expected.add((*bag, pair, arm, count))
    keys = ["operator", "criterion", "pair", "arm", "neurons_per_layer"]
    assert set(table.filter(pl.col("arm") != "none").select(keys).rows()) == expected
    assert len(knocked.ran(micro, name, "prompt_knockout")) > 2 * len(expected) > 0
