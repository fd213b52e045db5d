"""The bag over training: what stands for what at a point, and what is kept and silenced of it."""

from pathlib import Path

import polars as pl
import pytest

from tests.bag import knocked
from tests.bag.knocked import Units, listed, written
from tests.made import OPERATORS
from tests.micro import HALFWAY
from tests.trajectory import trajectories
from tests.trajectory.trajectories import (
    COMMON,
    COUNTS,
    HERE,
    KEY,
    LAST,
    LATE,
    LAYERS,
    PAIRS,
    POINT,
    SCORES,
    THERE,
    TYPES,
    interventions,
    own,
    units,
)


@pytest.fixture(scope="module")
def standing() -> pl.DataFrame:
    return trajectories.neurons(SCORES)


@pytest.fixture(scope="module")
def table(standing: pl.DataFrame) -> pl.DataFrame:
    return interventions(standing, PAIRS)


def ablated(table: pl.DataFrame) -> dict[tuple, Units]:
    """Return (operator, kept, draw) -> ablated neurons."""
    units_by_key = {}
    keeping = table.filter(pl.col("kept").is_not_null())
    for (_, operator, kept, draw, neurons), patches in keeping.group_by(
        "intervention", "operator", "kept", "draw", "neurons"
    ):
        units_by_key[operator, kept, draw] = knocked.units_of(patches)
        assert neurons == len(LATE) - len(units_by_key[operator, kept, draw])
    return units_by_key


def silenced(table: pl.DataFrame) -> dict[tuple, Units]:
    """Return (pair, arm, neurons per layer) -> ablated neurons."""
    units_by_key = {}
    for (_, *key, neurons), patches in table.filter(pl.col("arm").is_not_null()).group_by(
        "intervention", "pair", "arm", "neurons_per_layer", "neurons"
    ):
        units_by_key[tuple(key)] = knocked.units_of(patches)
        assert neurons == len(units_by_key[tuple(key)])
    return units_by_key


def sizes(units: Units) -> list[int]:
    return [len(knocked.in_layer(units, layer)) for layer in LAYERS]


def test_late_neurons_stand_where_they_pass_and_are_shared_where_they_do_at_the_end(
    standing: pl.DataFrame,
):
    expected = [(POINT, *key, *TYPES[key[3]], c, key in THERE) for key, c in sorted(HERE.items())]
    assert (
        standing.select("subject", *KEY, "quantity", "kind", "chance_corrected", "shared").rows()
        == expected
    )
    assert 0.2 < standing["shared"].mean() < 0.9
    assert standing.height < len(THERE) * 2 < 4 * standing.height


def test_the_last_point_shares_all_with_itself():
    for given in (SCORES, SCORES.filter(subject=LAST)):
        last = trajectories.neurons(given, LAST)
        assert last.select(KEY).rows() == sorted(THERE)
        assert last["shared"].all()
    without = ablated(interventions(last, PAIRS, subject=LAST))
    for o in OPERATORS:
        for kept, draw in [("shared", None), ("drawn", 0), ("drawn", 2)]:
            assert without[o, kept, draw] == without[o, "all", None]


def test_without_late_layers_or_a_setting_none_stands():
    for other in ({"first": None}, {"threshold": None}):
        assert trajectories.neurons(SCORES, **other).is_empty()
    assert set(trajectories.neurons(SCORES, first=2)["layer"]) == {2}


def test_what_is_kept_are_the_right_late_neurons(table: pl.DataFrame):
    without = ablated(table)
    for o in OPERATORS:
        stands, shared = units(HERE, o), units(COMMON, o)
        assert shared < stands < LATE
        ends = {"everything": LATE, "all": stands, "shared": shared, "nothing": set()}
        for kept, neurons in ends.items():
            assert without.pop((o, kept, None)) == LATE - neurons
        for draw in range(3):
            drawn = LATE - without.pop((o, "drawn", draw))
            random = LATE - without.pop((o, "random", draw))
            assert drawn <= stands
            assert sizes(drawn) == sizes(shared)
            assert sizes(random) == sizes(stands)
    assert without == {}


def test_each_prompt_loses_the_best_of_its_own_or_as_many_others(table: pl.DataFrame):
    units_by_key = silenced(table)
    for prompt in listed(PAIRS, split="evaluation"):
        mine = own(HERE, prompt)
        others = units(HERE, prompt.operator) - mine.keys()
        before: Units = set()
        for count in COUNTS:
            best: Units = set()
            for layer in LAYERS:
                peers = knocked.in_layer(mine, layer)
                best |= {*sorted(peers, key=lambda unit: (-mine[unit], unit))[:count]}
            assert units_by_key.pop((prompt.pair, "heuristic", count)) == best
            control = units_by_key.pop((prompt.pair, "control", count))
            assert before <= control <= others
            assert sizes(control) == list(map(min, sizes(best), sizes(others)))
            before = control
    assert units_by_key == {}


def test_the_executor_takes_them_and_a_prompt_without_neurons_runs_as_it_is(table: pl.DataFrame):
    read = knocked.taken(table)
    assert len(read) == len(OPERATORS) * (4 + 2 * 3 + 40 * 2 * len(COUNTS))
    clean = set()
    for intervention in read:
        for patch in intervention.patches:
            assert patch.replacement == ("mean" if intervention.pair is None else "zero")
        if not intervention.patches:
            clean.add(intervention.pair)
    without_patch = {pair for (pair, *_), ablated in silenced(table).items() if not ablated}
    assert clean == {None} | without_patch
    without = {prompt.pair for prompt in listed(PAIRS, split="evaluation") if not own(HERE, prompt)}
    assert set() < without <= clean


def test_draws_are_even_and_by_seed(standing: pl.DataFrame):
    some = standing.filter(operator="add", layer=1)
    once = PAIRS.filter(split="evaluation").head(1).with_columns(operator=pl.lit("add"))
    without = ablated(interventions(some, once, control_draws=400, knockout_seed=0))
    other = ablated(interventions(some, once, control_draws=400, knockout_seed=1))
    assert without != other
    stands = set(some.select("layer", "neuron").rows())
    shared = set(some.filter("shared").select("layer", "neuron").rows())
    for among, size, kept in (
        (stands, len(shared), "drawn"),
        (knocked.in_layer(LATE, 1), len(stands), "random"),
    ):
        share = size / len(among)
        assert 0 < share < 1
        for unit in among:
            count = sum(unit not in without["add", kept, draw] for draw in range(400))
            assert abs(count - 400 * share) < 4 * (400 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("seed", "random"),
    [
        ("knockout_seed", pl.col("kept").is_in(["drawn", "random"])),
        ("prompt_knockout_seed", pl.col("arm") == "control"),
    ],
)
def test_a_seed_changes_what_is_random_alone(
    table: pl.DataFrame, standing: pl.DataFrame, seed: str, random: pl.Expr
):
    other, random = interventions(standing, PAIRS, **{seed: 1}), random.fill_null(value=False)
    assert other.filter(~random).equals(table.filter(~random))
    assert not other.filter(random).equals(table.filter(random))


def test_without_prompts_or_late_layers_nothing_is_run(standing: pl.DataFrame):
    assert interventions(standing, PAIRS.clear()).is_empty()
    assert interventions(standing.clear(), PAIRS, first=None).is_empty()


def test_before_there_are_heuristics_nothing_is_kept_or_silenced(standing: pl.DataFrame):
    table = interventions(standing.clear(), PAIRS)
    for (_, kept, _), neurons in ablated(table).items():
        assert neurons == (set() if kept == "everything" else LATE)
    kept = {"everything", "all", "shared", "nothing", "drawn", "random"}
    assert set(table["kept"].drop_nulls()) == kept
    assert set(map(len, silenced(table).values())) == {0}


@pytest.mark.parametrize("name", [HALFWAY, "abacus"])
def test_the_pipeline_runs_each_point_on_the_prompts_it_is_meant_for(micro: Path, name: str):
    standing = written(micro, name, "trajectory_neurons")
    table = written(micro, name, "trajectory_interventions")
    knocked.ran(micro, name, "trajectory")
    for (operator,), rows in table.filter(kept="all").group_by("operator"):
        assert set(rows["neurons"]) == {
            standing.filter(operator=operator).select("layer", "neuron").n_unique()
        }
    assert standing["shared"].all() or name == HALFWAY
