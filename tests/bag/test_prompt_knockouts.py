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
OF = [EVEN, LOW, ENDS, SET]


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=8)


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return neurons 0 to 31 of each layer with one or two heuristics; layer 0 is not late.

    Neurons from 24 on have them by the criterion scored alone.
    """
    rows = [(*unit, OF[unit[2] % 4]) for unit in product(OPERATORS, (0, 1, 2), range(32))]
    second = product(OPERATORS, (0, 1, 2), range(0, 32, 3))
    rows += [(*unit, OF[(unit[2] + 1) % 4]) for unit in second]
    parts = [
        standing([row for row in rows if row[2] < 24], "label", "fdr", late=1),
        standing(rows, "threshold", late=1),
    ]
    return pl.concat(parts).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def table(members: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    return knocked.prompt_knockouts(pairs, members, COUNTS)


@pytest.fixture(scope="module")
def silenced(table: pl.DataFrame) -> dict[tuple, Units]:
    """Return (pair, criterion, arm, neurons per layer) -> what zero and mean ablate alike."""
    ablated: dict[str, dict[tuple, Units]] = {"zero": {}, "mean": {}}
    keys = ["pair", "criterion", "arm", "neurons_per_layer", "replacement", "intervention"]
    for (*key, replacement, _), patches in table.filter(pl.col("arm") != "none").group_by(keys):
        units = knocked.units_of(patches)
        assert set(patches["neurons"]) == {len(units)}
        ablated[replacement][tuple(key)] = units
    assert ablated["zero"] == ablated["mean"]
    return ablated["zero"]


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
    stands = {
        key: rows.select("layer", "neuron", "heuristic").rows()
        for key, rows in members.filter("late").group_by("operator", "criterion")
    }
    for prompt in listed(pairs, split="evaluation"):
        own = {h for h in OF if MEANS[h](prompt)}
        for criterion in ("fdr", "threshold"):
            pairs_of_neurons = stands[prompt.operator, criterion]
            mine = {(layer, n) for layer, n, h in pairs_of_neurons if h in own}
            others = {(layer, n) for layer, n, h in pairs_of_neurons if h not in own}
            among = {
                "heuristic": mine,
                "count": mine,
                "control": others - mine,
                "contaminated": others,
                "matched": EFFECTS.keys() - mine,
            }
            for arm in ARMS:
                assert (
                    silenced[prompt.pair, criterion, arm, 2]
                    <= silenced[prompt.pair, criterion, arm, 5]
                )
                for count in COUNTS:
                    units = silenced[prompt.pair, criterion, arm, count]
                    assert units <= among[arm]
                    for layer in (1, 2):  # as many in every arm and layer where there are enough
                        available = [
                            knocked.in_layer(several, layer) for several in (mine, among[arm])
                        ]
                        wanted = min(count, *map(len, available))
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
    again, other = (knocked.prompt_knockouts(pairs, members, COUNTS, seed) for seed in (0, 1))
    assert again.equals(table)
    random = pl.col("arm").is_in(["control", "contaminated"])
    assert other.filter(~random).equals(table.filter(~random))
    assert not other.filter(random).equals(table.filter(random))


def test_without_late_heuristics_there_is_none(members: pl.DataFrame, pairs: pl.DataFrame):
    assert knocked.prompt_knockouts(pairs, members.clear(), COUNTS).is_empty()
    assert knocked.prompt_knockouts(
        pairs, members.with_columns(late=pl.lit(False)), COUNTS
    ).is_empty()


def test_an_operator_or_a_way_of_counting_without_heuristics_is_left_out(
    members: pl.DataFrame, pairs: pl.DataFrame
):
    some = members.filter((pl.col("operator") == "subtract") & (pl.col("criterion") == "threshold"))
    few = knocked.prompt_knockouts(pairs, some, COUNTS)
    assert set(few.select("operator", "criterion").rows()) == {
        ("subtract", None),
        ("subtract", "threshold"),
    }
    assert len(knocked.taken(few)) == 1 + 40 * len(ARMS) * len(COUNTS) * 2


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_knocks_out_every_evaluation_prompt(micro: Path, name: str):
    members, table = (
        written(micro, name, "heuristic_neurons").filter("late"),
        written(micro, name, "prompt_knockout_interventions"),
    )
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
