"""The queries about circuits of heads: each real .sql against brute force or a planted truth."""

from itertools import product

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import HEADS, LAYERS, NL, OPERATORS, Tables, architecture, ask

ORDER = {
    "effect": [(2, 1), (0, 0), (0, 1), (2, 0), (1, 1), (1, 0)],
    "logit_effect": [(1, 0), (1, 1), (2, 0), (0, 1), (0, 0), (2, 1)],
}


@pytest.fixture
def effects() -> pl.DataFrame:
    """component_effects in which heads rank as in ORDER; MLPs far above."""
    rows: list[tuple] = []
    for operator in OPERATORS:
        for layer in range(LAYERS):
            rows.append((operator, "mlp", layer, None, "last", 99.0, 99.0))
            for head in range(HEADS):
                place = ORDER["effect"].index((layer, head))
                rows.append((operator, "head", layer, head, "last", 10.0 - place, 0.0))
                rows.append(
                    (
                        operator,
                        "head",
                        layer,
                        head,
                        "op1",
                        None if place == 5 else -3.0,
                        float(place),
                    )
                )
    schema = {
        "operator": pl.String,
        "component": pl.String,
        "layer": pl.Int16,
        "head": pl.Int16,
        "position": pl.String,
    }
    made = pl.DataFrame(
        rows, schema={**schema, "effect": pl.Float64, "logit_effect": pl.Float64}, orient="row"
    )
    return made.with_columns(subject=pl.lit("s"))


def test_circuits_of_heads_ablate_the_others(effects: pl.DataFrame):
    table = ask(
        "head_circuit_interventions", {"component_effects": effects, "architecture": architecture()}
    )
    assert table["intervention"].unique().sort().to_list() == list(
        range(table["intervention"].n_unique())
    )
    assert set(table["split"]) == {"evaluation"}
    assert table["key_position"].is_null().all()
    whole_models = table.filter(component="none")
    patch = ("layer", "units", "position", "replacement")
    assert set(whole_models.select(patch).rows()) == {(None,) * 4}
    patches = table.filter(pl.col("component") != "none")
    assert set(patches["position"]) == {"all"}
    is_own = pl.col("circuit").is_in(["own_means", "nothing_own_means"])
    mean = pl.when(is_own).then(pl.format("mean_{}", "operator")).otherwise(pl.lit("mean"))
    assert patches.filter(pl.col("replacement").ne_missing(mean)).is_empty()
    is_whole_layer = pl.col("circuit").str.starts_with("nothing")
    assert patches.filter(pl.col("units").is_null() != is_whole_layer).is_empty()
    keys = ["operator", "circuit", "seed", "heads"]
    assert table.select(keys).n_unique() == table["intervention"].n_unique()
    circuits: dict[tuple, set] = {}
    for key, part in table.explode("units").group_by(keys):
        ablated = part.filter(pl.col("component") != "none")
        circuits[key] = set(ablated.select("component", "layer", "units").rows())
    sizes = [0, 1, 2, 4, 6]
    whole_layers = set(product(("head", "mlp"), range(LAYERS), [None]))
    every_head = set(product(["head"], range(LAYERS), range(HEADS)))
    for operator in OPERATORS:
        assert circuits[operator, "everything", None, 6] == set()
        for nothing in ("nothing", "nothing_own_means"):
            assert circuits[operator, nothing, None, 0] == whole_layers
        for ranking, order in (ORDER | {"own_means": ORDER["logit_effect"]}).items():
            for size in sizes:
                left_out = {("head", *head) for head in order[size:]}
                assert circuits[operator, ranking, None, size] == left_out
        for seed in range(3):
            before: set = set()
            for count in (1, 2, 4):  # an order, cut at different places
                kept = every_head - circuits[operator, "random", seed, count]
                assert len(kept) == count
                assert before < kept
                before = kept
    assert set(table.filter(circuit="random", seed=1)["heads"]) == {1, 2, 4}
    assert set(table.filter(circuit="random", seed=0)["heads"]) == set(sizes)


@pytest.fixture
def head_tables(effects: pl.DataFrame) -> Tables:
    pairs = made.pairs(per_seed=6, seeds=3)
    table = ask(
        "head_circuit_interventions", {"component_effects": effects, "architecture": architecture()}
    )
    weights = ask("bootstrap_weights", {"pairs": pairs})
    return {
        "head_circuit_interventions": table,
        "bootstrap_weights": weights,
        "pairs": pairs,
        "runs": made.runs(table, pairs),
    }


def test_faithfulness_is_eq_2(head_tables: Tables):
    table = ask("head_faithfulness", head_tables)
    numbers = head_tables["head_circuit_interventions"].unique("intervention").sort("intervention")
    assert len(table) == len(numbers)
    runs = (
        head_tables["runs"]
        .sort("intervention", "pair")
        .with_columns(pl.col(pl.Float32).cast(pl.Float64))
    )
    logits: dict[int, np.ndarray] = {}
    for (number,), part in runs.group_by("intervention"):
        logits[number] = part.select(NL).to_series().to_numpy()
    for number, row in zip(numbers["intervention"], table.to_dicts(), strict=True):
        ends = numbers.filter(operator=row["operator"])
        [whole] = ends.filter(circuit="everything")["intervention"]
        [nothing] = ends.filter(
            circuit="nothing_own_means" if "own_means" in row["circuit"] else "nothing"
        )["intervention"]
        recovered, possible = logits[number] - logits[nothing], logits[whole] - logits[nothing]
        assert row["faithfulness"] == pytest.approx(recovered.mean() / possible.mean())
        assert row["mean_of_ratios"] == pytest.approx((recovered / possible).mean())
        weights = np.array(
            head_tables["bootstrap_weights"]
            .filter(operator=row["operator"], split="evaluation")["weights"]
            .to_list()
        )
        ends = np.quantile(weights @ recovered / (weights @ possible), [0.05, 0.95])
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(ends[0]), pytest.approx(ends[1]))
        assert row["accuracy"] == pytest.approx(runs.filter(intervention=number)["correct"].mean())
        assert row["prompts"] == 18
        evaluated = {"operator": row["operator"], "split": "evaluation"}
        assert row["majority_accuracy"] == made.majority(head_tables["pairs"], **evaluated)
    assert table.filter(circuit="everything")["faithfulness"].to_list() == pytest.approx([1, 1])
    for nothing in ("nothing", "nothing_own_means"):
        assert table.filter(circuit=nothing)["faithfulness"].to_list() == pytest.approx([0, 0])


def test_faithfulness_without_a_scale_is_null(head_tables: Tables):
    flat = head_tables["runs"].with_columns(
        answer_logit=pl.lit(1, pl.Float32),
        max_logit=pl.lit(2, pl.Float32),
        mean_logit=pl.lit(0, pl.Float32),
    )
    table = ask("head_faithfulness", head_tables | {"runs": flat})
    assert (
        set(table["faithfulness"]) == set(table["mean_of_ratios"]) == set(table["ci_low"]) == {None}
    )
    assert set(table["prompts"]) == {18}


@pytest.fixture
def faithfulness() -> pl.DataFrame:
    """By logit effect, addition reaches 0.6 with 1 head and 0.95 with 4; subtraction never 0.5."""
    rows: list[tuple] = []
    for heads, value in ((0, 0.1), (1, 0.6), (2, 0.85), (4, 0.95), (6, 1.0)):
        rows += [
            ("add", "logit_effect", heads, None, value, value / 2),
            ("add", "effect", heads, None, value**2, 0.0),
        ]
        rows += [("subtract", "logit_effect", heads, None, None if heads == 6 else 0.4, 0.0)]
        for seed in range(3):
            rows.append(("add", "random", heads, seed, 0.1 * seed, 0.2 * seed))
    schema = {"operator": pl.String, "circuit": pl.String, "heads": pl.Int16, "seed": pl.Int32}
    schema |= {"faithfulness": pl.Float64, "accuracy": pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.with_columns(majority_accuracy=pl.lit(0.25))


def test_the_smallest_circuit_reaches_its_target(faithfulness: pl.DataFrame):
    rows = ask("smallest_circuits", {"head_faithfulness": faithfulness}).rows()
    assert rows == [
        ("s", "add", 0.5, 1, 0.6, 0.3, pytest.approx(0.1), pytest.approx(0.2), 0.25),
        ("s", "add", 0.9, 4, 0.95, 0.475, pytest.approx(0.1), pytest.approx(0.2), 0.25),
        ("s", "subtract", 0.5, *[None] * 6),
        ("s", "subtract", 0.9, *[None] * 6),
    ]


@pytest.mark.parametrize(
    ("ranking", "heads"),
    [("logit_effect", 4), ("logit_effect", 6), ("effect", 4), ("effect", 1)],
)
def test_the_circuits_heads_are_the_first_of_the_ranking(
    effects: pl.DataFrame,
    faithfulness: pl.DataFrame,
    ranking: str,
    heads: int,
):
    target = {1: 0.3, 4: 0.9, 6: 0.97}[heads]
    table = ask(
        "circuit_heads",
        {"component_effects": effects, "head_faithfulness": faithfulness},
        ranking=ranking,
        target=target,
    )
    mine = table.filter(operator="add")
    assert mine.select("layer", "head").rows() == ORDER[ranking][:heads]
    assert mine["rank"].to_list() == list(range(1, heads + 1))
    assert set(mine["reached"]) == {heads < 6}  # all six heads are the whole model's
    other = table.filter(operator="subtract", reached=False)
    assert len(other) == (0 if ranking == "logit_effect" and target < 0.4 else 6)


def test_a_circuit_has_at_least_one_head(effects: pl.DataFrame, faithfulness: pl.DataFrame):
    """Without heads, addition has a faithfulness of 0.1."""
    tables = {"component_effects": effects, "head_faithfulness": faithfulness}
    table = ask("circuit_heads", tables, ranking="logit_effect", target=0.05)
    mine = table.filter(operator="add")
    assert mine.select("layer", "head").rows() == ORDER["logit_effect"][:1]
