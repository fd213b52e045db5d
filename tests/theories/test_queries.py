"""Test the queries of theories against brute force, on made tables."""

from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import OPERATORS, Tables, ask, only, runs

THEORIES = {
    "another",
    "shuffled",
    "line",
    "circle",
    "circles",
    "helix",
    "polynomial",
    "pca",
    "number",
}
SMALL = 40
EDGES = [0.05, 0.95]
# all operands op2 are small, so fits to small numbers alone are the same
PATCHED_SITES = [
    *product([("op1", 0), ("op1", 1), ("last", 1)], [None, SMALL]),
    (("op2", 0), None),
]
EVALUATED = {"split": "evaluation"}


@pytest.fixture(scope="module")
def given() -> Tables:
    """Return pairs with the numbers of cells."""
    tables = made.model()
    random, pairs = np.random.default_rng(0), tables["pairs"]
    for name, most in {"op1": 100, "op2": SMALL, "result": 100}.items():
        numbers = pl.Series(name, random.integers(0, most, len(pairs)), pl.Int32)
        pairs = pairs.with_columns(numbers)
    return tables | {"pairs": pairs}


def fits() -> pl.DataFrame:
    """Return helix_fits of sites that are patched, and of sites that are not."""
    rows = [("op1", "op1", 0), ("op1", "op1", 1), ("op2", "op2", 0), ("last", "result", 1)]
    rows += [("last", "result", 0), ("last", "op1", 2)]  # another number, or equal in all prompts
    rows += [("op1", "op1", 3), ("last", "result", 3)]  # after the last layer
    schema = {"position": pl.String, "quantity": pl.String, "layer": pl.Int16}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    limits = pl.DataFrame({"numbers_below": [None, SMALL]}, schema={"numbers_below": pl.Int32})
    both = table.join(limits, how="cross").join(
        pl.DataFrame({"theory": ["helix", "line"]}), how="cross"
    )
    is_part = pl.col("numbers_below").is_not_null() & (pl.col("position") != "op2")
    return both.with_columns(
        subject=pl.lit("s"),
        operator=pl.lit("add"),
        numbers=pl.when(is_part).then(SMALL).otherwise(100),
        cells=pl.when(is_part).then(20).otherwise(50),
    )


@pytest.fixture(scope="module")
def patches(given: Tables) -> pl.DataFrame:
    """Return the table helix_interventions."""
    tables = {"helix_fits": fits(), "architecture": given["architecture"]}
    return ask("helix_interventions", tables)


def test_every_theory_is_patched_at_the_sites_of_its_number(patches: pl.DataFrame):
    clean, *rows = patches.iter_rows(named=True)
    assert (clean["component"], clean["theory"], clean["given"]) == ("none", "clean", None)
    expected = [
        (*site, theory, below) for (site, below), theory in product(PATCHED_SITES, THEORIES)
    ]
    keys = patches[1:].select("position", "layer", "theory", "numbers_below").rows()
    assert sorted(map(str, keys)) == sorted(map(str, expected))
    for row in rows:
        ending = " below" if row["numbers_below"] else ""
        assert row["given"] == f"{row['theory']} {row['position']} {row['layer']}{ending}"
        assert (row["component"], row["replacement"]) == ("residual", "given")
        assert (row["split"], row["units"]) == ("evaluation", None)
    assert patches["intervention"].to_list() == list(range(len(patches)))


def answers(
    runs: pl.DataFrame, given: Tables, operator: str, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return an intervention's answer logits above their mean, and whether answers are correct.

    Both are (evaluation prompts,), in order of pair.
    """
    prompts = given["pairs"].filter(operator=operator, **EVALUATED)["pair"].implode()
    rows = runs.filter(pl.col("pair").is_in(prompts), intervention=number).sort("pair")
    logits = rows["answer_logit"].cast(float) - rows["mean_logit"].cast(float)
    return logits.to_numpy(), rows["correct"].to_numpy()


def weights(given: Tables, operator: str) -> np.ndarray:
    """Return the bootstrap weights (replicates, evaluation prompts)."""
    rows = given["bootstrap_weights"].filter(operator=operator, **EVALUATED)
    return np.array(rows["weights"].to_list())


def numbered(table: pl.DataFrame, *keys: str) -> dict[tuple, int]:
    """Return the columns `keys` of interventions -> number of the intervention."""
    rows = table.select(*keys, "intervention").rows()
    return {tuple(values): number for *values, number in rows}


def clean_run_is_better(runs: pl.DataFrame, clean: int) -> pl.DataFrame:
    """Return runs in which the answer's logit is larger by 2 in the clean run."""
    more = pl.when(intervention=clean).then(2).otherwise(0)
    return runs.with_columns(answer_logit=(pl.col("answer_logit") + more).cast(pl.Float32))


def restored_tables(given: Tables, patches: pl.DataFrame, runs: pl.DataFrame) -> Tables:
    return only(given, "pairs", "bootstrap_weights") | {
        "helix_interventions": patches,
        "runs": runs,
    }


def test_restored_is_a_share_of_what_another_number_loses(given: Tables, patches: pl.DataFrame):
    own = clean_run_is_better(runs(patches, given["pairs"], "helix"), 0)
    others = own.with_columns(pl.lit("theory").alias("experiment"), pl.col("answer_logit") + 1)
    mixed = pl.concat([others, own.sample(fraction=1, shuffle=True, seed=0)])
    table = ask("helix_effects", restored_tables(given, patches, mixed), study_numbers=SMALL)
    assert len(table) == 2 * 4 * len(THEORIES) * len(OPERATORS)
    numbers = numbered(patches, "position", "layer", "theory", "numbers_below")
    for row in table.iter_rows(named=True):
        operator, below = row["operator"], row["numbers_below"]
        site = row["position"], row["layer"]
        ran = None if row["position"] == "op2" else below
        logits, correct = answers(own, given, operator, numbers[*site, row["theory"], ran])
        floor, _ = answers(own, given, operator, numbers[*site, "another", ran])
        top, _ = answers(own, given, operator, 0)
        prompts = given["pairs"].filter(operator=operator, **EVALUATED).sort("pair")
        number = "result" if row["position"] == "last" else row["position"]
        small = prompts[number].to_numpy() < (below or 1000)
        gained, whole = (logits - floor) * small, (top - floor) * small
        lost = whole[small].mean(), correct[small].mean(), small.sum()
        assert (row["lost"], row["accuracy"], row["prompts"]) == pytest.approx(lost)
        _, counts = np.unique(prompts["answer_token"].to_numpy()[small], return_counts=True)
        assert row["majority_accuracy"] == pytest.approx(counts.max() / small.sum())
        drawn_gains, drawn_wholes = (weights(given, operator) @ x for x in (gained, whole))
        if np.quantile(drawn_wholes, EDGES[0]) <= 0:  # too few prompts
            assert row["restored"] is None
            continue
        assert row["restored"] == pytest.approx(gained.sum() / whole.sum(), rel=1e-6)
        some = drawn_wholes != 0
        ends = np.quantile(drawn_gains[some] / drawn_wholes[some], EDGES)
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(ends, rel=1e-6)
        assert row["theory"] != "another" or row["restored"] == 0
    known = table.drop_nulls("restored")["numbers_below"]
    assert set(known) == {None, SMALL}


def test_nothing_is_restored_if_another_number_loses_nothing(given: Tables, patches: pl.DataFrame):
    logits = {"answer_logit": 0.5, "mean_logit": 0.0}
    constants = [pl.lit(value, pl.Float32).alias(name) for name, value in logits.items()]
    equal = runs(patches, given["pairs"], "helix").with_columns(constants)
    table = ask("helix_effects", restored_tables(given, patches, equal), study_numbers=SMALL)
    nulls = table.select("restored", "ci_low", "ci_high").null_count().row(0)
    assert nulls == (len(table),) * 3
    assert set(table["lost"]) == {0.0}


def theory_fits() -> pl.DataFrame:
    """Return fits to two late layers, and to both together: three budgets, and labels."""
    random = np.random.default_rng(1)
    whats = ("activation", "logit", "written")
    keys = {
        "operator": OPERATORS,
        "layer": (1, 2, None),
        "theory parameters": (*product(("bag", "waves"), (1, 2, 4)), ("labels", None)),
        "what": whats,
    }
    rows = []
    for operator, layer, theory, what in product(*keys.values()):
        rows.append((operator, layer, *theory, what))
    names = ["operator", "layer", "theory", "parameters", "what"]
    table = pl.DataFrame(rows, schema=names, orient="row")
    # bits differ between operators, as the dictionaries do
    lengths = pl.col("parameters").fill_null(0.5) * 10 + pl.col("operator").str.len_chars()
    table = table.with_columns(bits=lengths.cast(pl.Float64))
    for name in ("value", "ci_low", "ci_high", "relabelled"):
        table = table.with_columns(pl.Series(name, random.random(len(table))))
    neurons = pl.when(pl.col("layer").is_null()).then(24).otherwise(12)
    table = table.with_columns(subject=pl.lit("s"), choices=50, neurons=neurons, cells=80)
    counts = dict.fromkeys(("parameters", "choices", "neurons", "cells"), pl.Int32)
    return table.cast({"layer": pl.Int16, **counts})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def replaced() -> pl.DataFrame:
    """Return the table theory_interventions; 4 is the largest budget, 9 is not a budget."""
    return ask("theory_interventions", {"theory_fits": theory_fits()}, control_budgets=[1, 9])


def test_every_late_layer_is_patched_by_one_theory(replaced: pl.DataFrame):
    late = replaced.filter(pl.col("theory") != "clean")
    fits, controls = product((1, 2, 4), ["fit"]), product((1, 4), ["relabelled"])
    fitted = product(("bag", "waves"), (*fits, *controls))
    kinds = {(theory, *kind) for theory, kind in fitted}
    kinds |= {("itself", None, "fit"), ("mean", 0, "fit")}
    kinds |= {("labels", None, "fit"), ("labels", None, "relabelled")}
    assert set(late.select("theory", "parameters", "kind").rows()) == kinds
    for row in late.iter_rows(named=True):
        assert (row["component"], row["position"]) == ("mlp", "last")
        name = row["theory"]
        if row["parameters"]:
            name += f" {row['parameters']}"
        if row["kind"] == "relabelled":
            name += " relabelled"
        assert (row["replacement"], row["given"]) == ("given", f"{name} {row['layer']}")
    layers = late.group_by("intervention").agg("layer")["layer"].to_list()
    assert set(map(tuple, layers)) == {(1, 2)}
    clean = replaced.filter(theory="clean").select("component", "replacement")
    assert clean.rows() == [("none", None)]
    assert sorted(set(replaced["intervention"])) == list(range(15))


def replaced_tables(given: Tables, replaced: pl.DataFrame, runs: pl.DataFrame) -> Tables:
    return only(given, "pairs", "bootstrap_weights") | {
        "theory_fits": theory_fits(),
        "theory_interventions": replaced,
        "runs": runs,
    }


def share(
    given: Tables, runs: pl.DataFrame, numbers: dict[tuple, int], row: dict[str, Any], kind: str
) -> tuple[float, np.ndarray]:
    """Return the restored share or the accuracy of a row of `theories`, and its replicates."""
    key = row["theory"], row["parameters"], kind
    logits, correct = answers(runs, given, row["operator"], numbers[key])
    above, below = correct.astype(float), np.ones(len(correct))
    if row["what"] == "restored":
        floor, _ = answers(runs, given, row["operator"], numbers["mean", 0, "fit"])
        top, _ = answers(runs, given, row["operator"], numbers["clean", None, "fit"])
        above, below = logits - floor, top - floor
    drawn = weights(given, row["operator"])
    return above.sum() / below.sum(), (drawn @ above) / (drawn @ below)


def test_nothing_is_restored_if_the_neurons_means_lose_nothing(
    given: Tables, replaced: pl.DataFrame
):
    own = runs(replaced, given["pairs"], "theory")
    equal = {"answer_logit": 0.5, "mean_logit": 0.0}
    own = own.with_columns(pl.lit(value, pl.Float32).alias(name) for name, value in equal.items())
    table = ask("theories", replaced_tables(given, replaced, own))
    restored = table.filter(what="restored").select("value", "ci_low", "ci_high", "relabelled")
    assert restored.height
    assert restored.null_count().row(0) == (restored.height,) * 4
    assert table.filter(what="accuracy")["value"].null_count() == 0


def test_theories_are_compared_with_their_controls(given: Tables, replaced: pl.DataFrame):
    numbers = numbered(replaced, "theory", "parameters", "kind")
    own = runs(replaced, given["pairs"], "theory")
    own = clean_run_is_better(own, numbers["clean", None, "fit"])
    table = ask("theories", replaced_tables(given, replaced, own))
    whole = theory_fits().filter(pl.col("layer").is_null())
    assert len(table) == len(whole) + len(OPERATORS) * 2 * (2 * 3 + 1 + 2)
    keys = ["operator", "theory", "parameters", "what"]
    measures = ["value", "ci_low", "ci_high", "relabelled", "bits", "choices"]
    is_run = pl.col("what").is_in(["restored", "accuracy"])
    fitted = table.filter(~is_run).sort(keys)
    assert fitted.select(keys + measures).equals(whole.sort(keys).select(keys + measures))
    samples = {("activation", 24), ("logit", 80), ("written", 80)}
    assert set(fitted.select("what", "samples").rows()) == samples
    evaluated = given["pairs"].filter(**EVALUATED)
    most = {}
    for operator in OPERATORS:
        counts = evaluated.filter(operator=operator)["answer_token"].value_counts()["count"]
        most[operator] = counts.max() / counts.sum()
    for row in table.filter(is_run).iter_rows(named=True):
        value, drawn = share(given, own, numbers, row, "fit")
        expected = [value, *np.quantile(drawn, EDGES)]
        assert [row["value"], row["ci_low"], row["ci_high"]] == pytest.approx(expected, rel=1e-6)
        control = None
        searched = row["theory"] in ("bag", "waves")
        if row["theory"] == "labels" or row["parameters"] in (1, 4):
            control, _ = share(given, own, numbers, row, "relabelled")
        assert row["relabelled"] == pytest.approx(control)
        assert (row["choices"] == 50) == (searched or row["theory"] == "labels")
        lengths = {"mean": 0, "itself": None, "labels": 5 + len(row["operator"])}
        length = (row["parameters"] or 0) * 10 + len(row["operator"])
        assert row["bits"] == (length if searched else lengths[row["theory"]])
        majority = most[row["operator"]] if row["what"] == "accuracy" else None
        assert row["majority_accuracy"] == majority


def test_a_model_without_pairs_has_only_fits(given: Tables, replaced: pl.DataFrame):
    none = {
        "pairs": given["pairs"].clear(),
        "bootstrap_weights": given["bootstrap_weights"].clear(),
    }
    empty = runs(replaced, given["pairs"], "theory").clear()
    table = ask("theories", replaced_tables(none, replaced, empty))
    assert set(table["what"]) == {"activation", "logit", "written"}
