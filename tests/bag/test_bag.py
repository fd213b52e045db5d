"""The bag alone: what is kept, and how much of made subjects' answers it carries."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.bag import digit_means
from tests.bag import knocked
from tests.bag.knocked import (
    CRITERIA,
    ENDS,
    EVEN,
    LOW,
    MEANS,
    Prompt,
    Units,
    standing,
    standing_alike,
    written,
)
from tests.made import NL, OPERATORS, ask, late_layers, majority

SETTINGS = {"control_draws": 3, "knockout_seed": 0}
NEURONS = 12
KEYS = ["operator", "criterion", "kept", "ablation"]
LATE = set(product((1, 2), range(NEURONS)))


@pytest.fixture(scope="module")
def pairs() -> pl.DataFrame:
    return knocked.prompts(per_seed=10)


@pytest.fixture(scope="module")
def members() -> pl.DataFrame:
    """Return more neurons by looser criteria; by scored, all of layer 2. Layer 0 is not late."""
    sizes = {"label": (9, 4, 2), "fdr": (9, 6, 2), "threshold": (9, 7, NEURONS)}
    frames = []
    for criterion, size in sizes.items():
        rows: list[tuple[str, int, int, str]] = []
        for layer, count in enumerate(size):
            rows += product(OPERATORS, [layer], range(count), (EVEN, LOW))
        frames.append(standing(rows, criterion, late=1))
    return pl.concat(frames).sample(fraction=1, shuffle=True, seed=1)


def partners(members: pl.DataFrame, layers: tuple[int, ...] = (0, 1, 2)) -> pl.DataFrame:
    """Return the table matched_neurons, with random variances of all neurons."""
    rows = list(product(OPERATORS, layers, range(NEURONS)))
    types = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32}
    variances = pl.Series(np.random.default_rng(0).random(len(rows)))
    sums = pl.DataFrame(rows, schema=types, orient="row").with_columns(variance=variances, cells=9)
    given = {
        "heuristic_neurons": members,
        "neuron_sums": sums,
        "digit_means": pl.DataFrame(schema=digit_means.SCHEMA),
    }
    return ask("matched_neurons", given, steered_neurons=[1])


def kept(
    members: pl.DataFrame,
    pairs: pl.DataFrame,
    first: int | None = 1,
    layers: tuple[int, ...] = (0, 1, 2),
    **settings: int,
) -> pl.DataFrame:
    types = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32}
    rows = list(product(OPERATORS, layers, range(NEURONS)))
    naming = pl.DataFrame(rows, schema=types, orient="row")
    given = {
        "heuristic_neurons": members,
        "pairs": pairs,
        "naming": naming,
        "late_layers": late_layers(first),
        "matched_neurons": partners(members, layers),
    }
    return ask("bag_interventions", given, **SETTINGS | settings)


@pytest.fixture(scope="module")
def bags(members: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    return kept(members, pairs)


def ablated(bags: pl.DataFrame, replacement: str = "mean") -> dict[tuple, Units]:
    """(operator, criterion, kept, draw) -> what is ablated."""
    units = {}
    for (_, *key, neurons), patches in bags.filter(replacement=replacement).group_by(
        "intervention", "operator", "criterion", "kept", "draw", "neurons"
    ):
        units[tuple(key)] = knocked.units_of(patches)
        assert neurons == len(LATE) - len(units[tuple(key)])
    return units


def test_what_is_kept_and_what_is_ablated_are_all_late_neurons(
    members: pl.DataFrame, bags: pl.DataFrame
):
    without = ablated(bags)
    assert without == ablated(bags, "zero")
    expected: dict[tuple, Units] = {}
    pairs_of_neurons = partners(members).drop_nulls("matched")
    for o in OPERATORS:
        expected |= {(o, None, "everything", None): set(), (o, None, "nothing", None): LATE}
        for m in CRITERIA:
            bag = members.filter("late", operator=o, criterion=m)
            mine = set(bag.select("layer", "neuron").rows())
            expected |= {(o, m, "heuristic", None): LATE - mine, (o, m, "rest", None): mine}
            alike = pairs_of_neurons.filter(operator=o, criterion=m)
            matched = set(alike.select("layer", "matched").rows())
            assert not matched & mine
            expected |= {(o, m, "matched", None): LATE - matched}
            expected |= {(o, m, "matched_rest", None): matched}
            for layer in (1, 2):
                size = len(knocked.in_layer(mine, layer))
                assert len(knocked.in_layer(matched, layer)) == min(size, NEURONS - size)
            for draw in range(3):
                random = LATE - without.pop((o, m, "random", draw))
                assert without.pop((o, m, "random_rest", draw)) == random
                for layer in (1, 2):
                    drawn, own = knocked.in_layer(random, layer), knocked.in_layer(mine, layer)
                    assert len(drawn) == len(own)
    assert without == expected


def test_the_executor_takes_them(bags: pl.DataFrame):
    read = knocked.taken(bags)
    assert len(read) == len(OPERATORS) * 2 * (2 + 3 * (4 + 2 * 3))
    assert knocked.clean_runs(read) == sorted(OPERATORS * 2, key=OPERATORS.index)


def test_random_neurons_are_drawn_evenly_and_by_seed(members: pl.DataFrame, pairs: pl.DataFrame):
    labels = members.filter(criterion="label", operator="add")
    several = []
    for seed in (0, 1):
        draws = (
            kept(labels, pairs, control_draws=300, knockout_seed=seed)
            .filter(kept="random", layer=1, replacement="mean")
            .sort("draw")
        )
        several.append(draws["units"].to_list())
    assert several[0] != several[1]
    counts = np.bincount(np.concatenate(several[0]), minlength=NEURONS)  # 8 of 12 are ablated
    assert np.abs(counts - 200).max() < 4 * (300 * 2 / 3 * 1 / 3) ** 0.5


def test_only_stored_layers_are_ablated(members: pl.DataFrame, pairs: pl.DataFrame):
    bags = kept(members.filter(layer=2), pairs, layers=(2,))
    assert set(bags["layer"].drop_nulls()) == {2}
    assert set(bags.filter(kept="everything")["neurons"]) == {NEURONS}


def concluded(bags: pl.DataFrame, pairs: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    given = {"bag_interventions": bags, "runs": runs, "pairs": pairs}
    return ask("bag_alone", given | {"bootstrap_weights": knocked.weights(pairs)})


def test_accuracy_and_faithfulness_are_those_of_brute_force(
    bags: pl.DataFrame, pairs: pl.DataFrame
):
    random = knocked.at_random(1)

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        """The more neurons are ablated, the smaller is the answer's logit."""
        logit, correct = random(units, prompt)
        return logit - len(units) / 4, correct

    runs = knocked.simulated(bags, "bag", pairs, answer)
    numbers = runs.filter(experiment="bag").with_columns(
        pl.col("answer_logit", "counterfactual_logit", "mean_logit", "max_logit").cast(float)
    )
    difference = pl.col("answer_logit") - pl.col("counterfactual_logit")
    once = bags.rename({"replacement": "ablation"}).unique("intervention")
    means = (
        once.join(numbers.with_columns(nl=NL, difference=difference), on="intervention")
        .group_by(*KEYS, "neurons", "pair")
        .agg(pl.col("correct", "nl", "difference").mean())
    )
    by_key = means.sort("pair").partition_by(KEYS, as_dict=True)
    assert len(by_key) == len(OPERATORS) * 2 * (2 + 3 * 6)
    weights = knocked.weights(pairs)
    expected = []
    for (operator, criterion, what, ablation), rows in by_key.items():
        nothing = by_key[operator, None, "nothing", ablation]["nl"].mean()
        everything = by_key[operator, None, "everything", ablation]["nl"].mean()
        drawn = knocked.drawn(weights, operator)
        low, high = knocked.interval(rows["correct"].to_numpy(), drawn)
        ends = (by_key[operator, None, end, ablation] for end in ("nothing", "everything"))
        without, whole = (end["difference"].to_numpy() for end in ends)
        gains, losses = rows["difference"].to_numpy() - without, whole - without
        assert np.quantile(drawn @ losses, 0.05) > 0
        ratios = (drawn @ gains) / (drawn @ losses)
        expected.append(
            {
                "operator": operator,
                "criterion": criterion,
                "kept": what,
                "ablation": ablation,
                "neurons": rows["neurons"].unique().item(),
                "accuracy": rows["correct"].mean(),
                "ci_low": low,
                "ci_high": high,
                "faithfulness": (rows["nl"].mean() - nothing) / (everything - nothing),
                "recovered": gains.sum() / losses.sum(),
                "recovered_low": np.quantile(ratios, 0.05),
                "recovered_high": np.quantile(ratios, 0.95),
                "prompts": 50,
                "majority_accuracy": majority(pairs, operator=operator, split="evaluation"),
            }
        )
    knocked.assert_rows(concluded(bags, pairs, runs), expected)


def test_a_planted_bag_answers_alone_and_nothing_else_does(
    members: pl.DataFrame, pairs: pl.DataFrame
):
    """Each labelled neuron adds one logit to prompts of its heuristic.

    An answer needs four of the six late neurons.
    """
    heuristics = {(1, 0): EVEN, (1, 1): LOW, (1, 2): ENDS}
    everywhere = set(product([2], range(6)))
    labels = standing_alike(heuristics | dict.fromkeys(everywhere, EVEN), "label", late=1)

    def answer(units: Units, prompt: Prompt) -> tuple[float, bool]:
        votes = len(everywhere - units)
        correct = votes >= 4
        for unit, heuristic in heuristics.items():
            votes += unit not in units and MEANS[heuristic](prompt)
        return float(votes), correct

    bags = kept(labels, pairs, control_draws=20)
    table = concluded(bags, pairs, knocked.simulated(bags, "bag", pairs, answer))
    assert set(table.filter(kept="everything")["neurons"]) == {len(LATE)}
    whole, empty = ("everything", "heuristic", "matched_rest"), ("nothing", "rest", "matched")
    assert table.filter(kept="everything")["recovered"].to_list() == [1] * 4
    for what, value in (dict.fromkeys(whole, 1) | dict.fromkeys(empty, 0)).items():
        rows = table.filter(kept=what).select("accuracy", "ci_low", "ci_high").rows()
        assert set(rows) == {(value, value, value)}  # where all prompts agree nothing is uncertain
        assert table.filter(kept=what)["faithfulness"].to_list() == pytest.approx([value] * 4)
    random = table.filter(kept="random")
    assert random["accuracy"].is_between(0.05, 0.6).all()
    assert random["faithfulness"].is_between(0.2, 0.6).all()
    # without random neurons, four of the six often remain; without the six, none
    assert table.filter(kept="random_rest")["accuracy"].is_between(0.2, 0.95).all()


def test_nothing_is_recovered_where_late_neurons_do_not_matter(
    bags: pl.DataFrame, pairs: pl.DataFrame
):
    table = concluded(bags, pairs, knocked.simulated(bags, "bag", pairs, lambda *_: (1.0, True)))
    assert table["recovered"].null_count() == table["recovered_low"].null_count() == len(table)


def test_an_operator_without_heuristics_has_no_bag(members: pl.DataFrame, pairs: pl.DataFrame):
    bags = kept(members.filter(operator="add"), pairs)
    assert set(bags.filter(operator="subtract")["kept"]) == {"everything", "nothing"}
    table = concluded(bags, pairs, knocked.simulated(bags, "bag", pairs, knocked.at_random(0)))
    assert table.filter(operator="subtract").height == 4


def test_without_late_layers_or_prompts_all_is_empty(members: pl.DataFrame, pairs: pl.DataFrame):
    early = members.with_columns(late=pl.lit(False))
    for bags in (
        kept(early, pairs, first=None),
        kept(members.clear(), pairs, first=None),
        kept(members.clear(), pairs.clear()),
    ):
        assert bags.is_empty()
        assert concluded(
            bags, pairs, knocked.simulated(bags, "bag", pairs, knocked.at_random(0))
        ).is_empty()


def test_in_the_pipeline_the_planted_bag_answers_alone_and_the_rest_does_not(micro: Path):
    table = written(micro, "planted", "bag_alone")
    certain = table.filter(~pl.col("kept").str.contains("random|matched"))
    assert set(certain.select("kept", "accuracy", "ci_low", "ci_high").rows()) == {
        ("everything", 1, 1, 1),
        ("heuristic", 1, 1, 1),
        ("nothing", 0, 0, 0),
        ("rest", 0, 0, 0),
    }
    assert table.filter(kept="heuristic")["faithfulness"].is_between(0.99, 1.01).all()
    assert table.filter(kept="rest")["faithfulness"].is_between(-0.05, 0.05).all()
    assert (table.filter(kept="random")["accuracy"] < 0.7).all()


@pytest.mark.parametrize("name", ["abacus", "planted"])
def test_the_pipeline_keeps_each_bag_and_what_is_not_in_it(micro: Path, name: str):
    members, table = (
        written(micro, name, "heuristic_neurons").filter("late"),
        written(micro, name, "bag_alone"),
    )
    assert len(knocked.ran(micro, name, "bag")) > 0
    evaluated = written(micro, name, "pairs").filter(split="evaluation")
    bags = members.select("operator", "criterion").rows()
    ends = evaluated.select("operator", pl.lit(None)).rows()
    own, controls = ("heuristic", "rest"), ("random", "random_rest", "matched", "matched_rest")
    parts = dict.fromkeys(bags, own + controls)
    parts |= dict.fromkeys(ends, ("everything", "nothing"))
    expected = set()
    for bag, several in parts.items():
        for what, ablation in product(several, ("mean", "zero")):
            expected.add((*bag, what, ablation))
    assert set(table.select(KEYS).rows()) == expected
    units = members.unique(["operator", "criterion", "layer", "neuron"])
    sizes = units.group_by("operator", "criterion").agg(size=pl.len())
    joined = table.join(sizes, on=["operator", "criterion"])
    whole = table.filter(kept="everything")["neurons"].unique().item()
    is_rest = pl.col("kept").str.ends_with("rest")
    size = pl.when(is_rest).then(whole - pl.col("size")).otherwise("size")
    is_matched = pl.col("kept").str.starts_with("matched")
    assert joined.filter(~is_matched).select(pl.col("neurons").eq_missing(size).all()).item()
    matched = joined.filter(is_matched, ablation="mean").sort("kept")
    for _, both in matched.group_by("operator", "criterion"):
        few, rest = both["neurons"]
        assert few <= both["size"][0]
        assert few + rest == whole
