"""The real queries of theories against brute force, on made tables."""

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import OPERATORS, Tables, ask, of, runs

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


@pytest.fixture(scope="module")
def given() -> Tables:
    """Pairs with numbers of cells; the answer is larger in a clean run."""
    tables = made.model()
    random, pairs = np.random.default_rng(0), tables["pairs"]
    numbers = {name: random.integers(0, 100, len(pairs)) for name in ("op1", "op2", "result")}
    return tables | {
        "pairs": pairs.with_columns(pl.Series(name, of, pl.Int32) for name, of in numbers.items())
    }


def fits() -> pl.DataFrame:
    """Where a query looks for sites: those of the operands in front of layers 0 and 1, the answer in front of 1, and others."""
    rows = [
        ("op1", "op1", 0),
        ("op1", "op1", 1),
        ("op2", "op2", 0),
        ("last", "result", 0),
        ("last", "result", 1),
        ("last", "op1", 2),
    ]
    rows += [("op1", "op1", 3), ("last", "result", 3)]  # behind the last layer
    table = pl.DataFrame(
        rows, schema={"position": pl.String, "quantity": pl.String, "layer": pl.Int16}, orient="row"
    )
    both = [table.with_columns(numbers_below=pl.lit(below, pl.Int32)) for below in (None, SMALL)]
    return pl.concat(both).with_columns(subject=pl.lit("s"), operator=pl.lit("add"))


@pytest.fixture(scope="module")
def patches(given: Tables) -> pl.DataFrame:
    return ask("helix_interventions", {"helix_fits": fits(), "architecture": given["architecture"]})


def test_streams_are_replaced_at_their_own_sites_by_every_theory(patches: pl.DataFrame):
    clean, *rows = patches.iter_rows(named=True)
    assert (clean["component"], clean["theory"], clean["given"]) == ("none", "clean", None)
    sites = {("op1", 0), ("op1", 1), ("op2", 0), ("last", 1)}
    expected = {(p, n, t, below) for p, n in sites for t in THEORIES for below in (None, SMALL)}
    assert {
        (row["position"], row["layer"], row["theory"], row["numbers_below"]) for row in rows
    } == expected
    for row in rows:
        ending = " below" if row["numbers_below"] else ""
        assert row["given"] == f"{row['theory']} {row['position']} {row['layer']}{ending}"
        assert (row["component"], row["replacement"], row["split"], row["units"]) == (
            "residual",
            "given",
            "evaluation",
            None,
        )
    assert patches["intervention"].to_list() == list(range(len(patches)))


def answers(
    said: pl.DataFrame, given: Tables, operator: str, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of one intervention: the answer's logit above the mean, and whether it is correct, of the evaluation prompts in order of pair."""
    prompts = given["pairs"].filter(operator=operator, split="evaluation")["pair"].implode()
    rows = said.filter(pl.col("pair").is_in(prompts), intervention=number).sort("pair")
    return (rows["answer_logit"].cast(float) - rows["mean_logit"].cast(float)).to_numpy(), rows[
        "correct"
    ].to_numpy()


def weights(given: Tables, operator: str) -> list[np.ndarray]:
    return [
        np.array(w)
        for w in given["bootstrap_weights"]
        .filter(operator=operator, split="evaluation")["weights"]
        .to_list()
    ]


def test_what_is_restored_lies_between_another_number_and_the_clean_run(
    given: Tables, patches: pl.DataFrame
):
    said = runs(patches, given["pairs"], "helix")
    clean = pl.col("intervention") == 0
    said = said.with_columns(
        answer_logit=pl.when(clean).then(pl.col("answer_logit") + 2).otherwise("answer_logit")
    )
    others = said.with_columns(pl.lit("theory").alias("experiment"), pl.col("answer_logit") + 1)
    mixed = pl.concat([others, said.sample(fraction=1, shuffle=True, seed=0)])
    table = ask(
        "helix_effects",
        {**of(given, "pairs", "bootstrap_weights"), "helix_interventions": patches, "runs": mixed},
    )
    assert len(table) == 2 * 4 * len(THEORIES) * len(OPERATORS)
    told = set()
    numbered = {
        tuple(row[:4]): row[4]
        for row in patches.select(
            "position", "layer", "theory", "numbers_below", "intervention"
        ).rows()
    }
    for row in table.iter_rows(named=True):
        site, below = (row["position"], row["layer"]), row["numbers_below"]
        mine, right = answers(said, given, row["operator"], numbered[*site, row["theory"], below])
        floor, _ = answers(said, given, row["operator"], numbered[*site, "another", below])
        top, _ = answers(said, given, row["operator"], 0)
        prompts = given["pairs"].filter(operator=row["operator"], split="evaluation").sort("pair")
        small = prompts["result" if row["position"] == "last" else row["position"]].to_numpy() < (
            below or 1000
        )
        gained, whole = (mine - floor) * small, (top - floor) * small
        assert [row["lost"], row["accuracy"], row["prompts"]] == pytest.approx(
            [whole[small].mean(), right[small].mean(), small.sum()]
        )
        if (
            np.quantile([whole @ w for w in weights(given, row["operator"])], 0.05) <= 0
        ):  # too few prompts
            assert row["restored"] is None
            continue
        told.add(below)
        assert row["restored"] == pytest.approx(gained.sum() / whole.sum(), rel=1e-6)
        drawn = [gained @ w / (whole @ w) for w in weights(given, row["operator"]) if whole @ w]
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(
            np.quantile(drawn, [0.05, 0.95]), rel=1e-6
        )
        assert row["theory"] != "another" or row["restored"] == 0
    assert told == {None, SMALL}


def test_where_another_number_costs_nothing_nothing_can_be_restored(
    given: Tables, patches: pl.DataFrame
):
    said = runs(patches, given["pairs"], "helix").with_columns(
        answer_logit=pl.lit(0.5, pl.Float32), mean_logit=pl.lit(0.0, pl.Float32)
    )
    table = ask(
        "helix_effects",
        {**of(given, "pairs", "bootstrap_weights"), "helix_interventions": patches, "runs": said},
    )
    assert table.select("restored", "ci_low", "ci_high").null_count().row(0) == (len(table),) * 3
    assert set(table["lost"]) == {0.0}


def theory_fits() -> pl.DataFrame:
    """Two late layers, and both together; two budgets."""
    random = np.random.default_rng(1)
    rows = [
        (operator, layer, theory, budget, what, *random.random(4), 50, 24 if layer is None else 12, 80)
        for operator in OPERATORS for layer in (1, 2, None) for theory in ("bag", "waves") for budget in (2, 4)
        for what in ("activation", "logit", "written")
    ]  # fmt: skip
    names = [
        "operator",
        "layer",
        "theory",
        "parameters",
        "what",
        "value",
        "ci_low",
        "ci_high",
        "relabelled",
        "choices",
        "neurons",
        "cells",
    ]
    whole = pl.DataFrame(rows, schema=names, orient="row").with_columns(subject=pl.lit("s"))
    return whole.with_columns(
        pl.col("layer").cast(pl.Int16),
        pl.col("parameters", "choices", "neurons", "cells").cast(pl.Int32),
    )


@pytest.fixture(scope="module")
def replaced() -> pl.DataFrame:
    return ask("theory_interventions", {"theory_fits": theory_fits()})


def test_every_late_layer_is_replaced_by_one_theory(replaced: pl.DataFrame):
    late = [row for row in replaced.iter_rows(named=True) if row["theory"] != "clean"]
    kinds = {
        (t, p, k) for t in ("bag", "waves") for p, k in ((2, "fit"), (4, "fit"), (4, "relabelled"))
    }
    assert {(r["theory"], r["parameters"], r["kind"]) for r in late} == kinds | {
        ("itself", None, "fit"),
        ("mean", 0, "fit"),
    }
    for row in late:
        assert (row["component"], row["position"]) == ("mlp", "last")
        told = {"itself": "itself", "mean": "mean"}.get(
            row["theory"], f"{row['theory']} {row['parameters']}"
        )
        extra = " relabelled" if row["kind"] == "relabelled" else ""
        assert (row["replacement"], row["given"]) == ("given", f"{told}{extra} {row['layer']}")
    assert {
        tuple(n["layer"])
        for _, n in replaced.filter(pl.col("theory") != "clean").group_by("intervention")
    } == {(1, 2)}
    assert replaced.filter(theory="clean").select("component", "replacement").rows() == [
        ("none", None)
    ]
    assert sorted(set(replaced["intervention"])) == list(range(9))


def test_theories_stand_side_by_side_with_their_nulls(given: Tables, replaced: pl.DataFrame):
    said, fitted = runs(replaced, given["pairs"], "theory"), theory_fits()
    clean, mean = (replaced.filter(theory=t)["intervention"][0] for t in ("clean", "mean"))
    more = pl.when(pl.col("intervention") == clean).then(2).otherwise(0)
    said = said.with_columns(answer_logit=(pl.col("answer_logit") + more).cast(pl.Float32))
    tables = {
        **of(given, "pairs", "bootstrap_weights"),
        "theory_fits": fitted,
        "theory_interventions": replaced,
        "runs": said,
    }
    table = ask("theories", tables)
    numbered = {
        tuple(row[:3]): row[3]
        for row in replaced.select("theory", "parameters", "kind", "intervention").rows()
    }
    whole = fitted.filter(pl.col("layer").is_null())
    assert len(table) == len(whole) + len(OPERATORS) * 2 * (2 * 2 + 2)
    keys = ["operator", "theory", "parameters", "what"]
    measures = ["value", "ci_low", "ci_high", "relabelled", "choices"]
    kept = table.filter(pl.col("what").is_in(["activation", "logit", "written"])).sort(keys)
    assert kept.select(keys + measures).equals(whole.sort(keys).select(keys + measures))
    assert set(kept.select("what", "samples").rows()) == {
        ("activation", 24),
        ("logit", 80),
        ("written", 80),
    }
    for row in table.filter(pl.col("what").is_in(["restored", "accuracy"])).iter_rows(named=True):

        def share(kind: str, row: dict = row) -> tuple[float, list[float]]:
            mine, right = answers(
                said, given, row["operator"], numbered[row["theory"], row["parameters"], kind]
            )
            floor, top = (
                answers(said, given, row["operator"], number)[0] for number in (mean, clean)
            )
            above, below = (
                (mine - floor, top - floor)
                if row["what"] == "restored"
                else (right.astype(float), np.ones(len(right)))
            )
            return above.sum() / below.sum(), [
                above @ w / (below @ w) for w in weights(given, row["operator"])
            ]

        value, drawn = share("fit")
        assert [row["value"], row["ci_low"], row["ci_high"]] == pytest.approx(
            [value, *np.quantile(drawn, [0.05, 0.95])], rel=1e-6
        )
        assert row["relabelled"] == (
            pytest.approx(share("relabelled")[0]) if row["parameters"] == 4 else None
        )
        assert row["choices"] == (50 if row["theory"] in ("bag", "waves") else None)


def test_a_subject_without_pairs_has_fits_alone(given: Tables, replaced: pl.DataFrame):
    said = runs(replaced, given["pairs"], "theory").clear()
    nobody = {
        "pairs": given["pairs"].clear(),
        "bootstrap_weights": given["bootstrap_weights"].clear(),
    }
    table = ask(
        "theories",
        {**nobody, "theory_fits": theory_fits(), "theory_interventions": replaced, "runs": said},
    )
    assert set(table["what"]) == {"activation", "logit", "written"}
