"""Queries of attention cuts against brute force, on made tables with known truths."""

from itertools import product

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests import made
from tests.circuit.circuits import (
    ALL_HEADS,
    KEPT,
    MEASURES,
    by_brute_force,
    ends_are_ends,
    heads,
    left_out,
)
from tests.made import LAYERS, Tables, ask, frame, only, runs


@pytest.fixture(scope="module")
def measured() -> Tables:
    return made.measured()


@pytest.fixture
def cuts(measured: Tables) -> pl.DataFrame:
    kept = heads(KEPT)
    subtracting = ["op1", "op1", "op2", "op2", "op1", "op1"]
    sources = kept.with_columns(source=pl.Series(["op2", "op1", *subtracting]), tokens=1)
    return ask("cut_interventions", cut_tables(measured, sources))


def cut_tables(measured: Tables, sources: pl.DataFrame) -> Tables:
    """Return what cut_interventions reads. sources: the table attention_sources."""
    kept = {"attention_sources": sources, "circuit_heads": heads(KEPT)}
    return kept | only(measured, "architecture")


def test_a_heads_source_is_where_the_last_position_looks_most():
    last = (
        frame(
            layer=[0, 2, 1],
            head=[1, 0, 0],
            key_position=[["op1, last but 1", "op1", "operator", "op2", "last"]] * 3,
            weight=[[0.1, 0.1, 0.1, 0.3, 0.4], [0.35, 0.25, 0.3, 0.1, 0.0], [0, 0, 1.0, 0, 0]],
        )
        .explode("key_position", "weight")
        .with_columns(operator=pl.lit("add"), query_position=pl.lit("last"))
        .cast({"weight": pl.Float32})
    )
    others = last.with_columns(query_position=pl.lit("op2"), weight=1 - pl.col("weight"))
    given = {
        "attention_patterns": pl.concat([others, last]),
        "circuit_heads": heads({"add": KEPT["add"]}),
    }
    table = ask("attention_sources", given)
    # without a token after it, op2's last token is called `last`
    at_end = last.with_columns(
        pl.col("key_position").replace({"op2": "op2, last but 1", "last": "last"})
    )
    long = ask("attention_sources", given | {"attention_patterns": at_end})
    assert dict(long.select("source", "tokens").iter_rows()) == {"op2": 2, "op1": 2}
    expected = [
        ("s", "add", 0, 1, "op2", 1, 0.3, 0.2, 0.1, 0.3),
        ("s", "add", 2, 0, "op1", 2, 0.6, 0.6, 0.3, 0.1),
    ]
    assert_frame_equal(
        table, pl.DataFrame(expected, schema=table.schema, orient="row"), rel_tol=1e-6
    )


def test_cuts_end_below_the_highest_reader(cuts: pl.DataFrame):
    add_edges = {(0, "op1", "earlier"), (1, "op1", "earlier")}
    subtract_edges = {*add_edges, (0, "op2", "earlier")}
    last = set(product(range(LAYERS), ["last"], ["op1", "op2"]))
    whole_layers = set(product(range(LAYERS), [None], ["all"]))
    for operator, edges in (("add", add_edges), ("subtract", subtract_edges)):
        ablated = {(*head, "all") for head in ALL_HEADS if head not in KEPT[operator]}
        expected = {
            "everything": (set(), set(), 6),
            "nothing": (whole_layers, set(), 0),
            "circuit": (ablated, set(), len(KEPT[operator])),
            "circuit_cut": (ablated, edges, len(KEPT[operator])),
            "model_cut": (set(), edges, 6),
            "last_cut": (ablated, last, len(KEPT[operator])),
        }
        mine = cuts.filter(operator=operator)
        assert set(mine["circuit"]) == set(expected)
        for circuit, (without, cut, kept) in expected.items():
            patches = mine.filter(circuit=circuit)
            assert patches["intervention"].n_unique() == 1
            assert left_out(patches, "head") == without
            assert left_out(patches, "mlp") == (without if circuit == "nothing" else set())
            edge_patches = patches.filter(component="edge")
            assert set(edge_patches.select("layer", "position", "key_position").rows()) == cut
            assert set(patches["heads"]) == {kept}
    assert cuts["intervention"].unique().sort().to_list() == list(range(12))
    edge_patches = cuts.filter(component="edge")
    assert edge_patches["units"].is_null().all()
    assert set(edge_patches["replacement"]) == {"zero"}


def test_circuits_are_only_those_in_which_something_is_cut(measured: Tables):
    kept = heads(KEPT).with_columns(source=pl.lit("op1"), tokens=1)
    adding, subtracting = pl.col("operator") == "add", pl.col("operator") == "subtract"
    whole, below = {"everything", "nothing", "circuit"}, {"circuit_cut", "model_cut"}
    every, last = {*whole, *below, "last_cut"}, {*whole, "last_cut"}
    # one head of addition reads a number of two tokens
    is_long = adding & (pl.col("layer") > 0)
    for sources, of_addition, of_subtraction in (
        (kept, every, every),
        (kept.filter(~adding), whole, every),  # attention weights are unknown
        (kept.with_columns(layer=pl.lit(0, pl.Int16)), last, last),  # no layer is below
        (kept.with_columns(tokens=pl.when(is_long).then(2).otherwise(1)), whole, every),
    ):
        cuts = ask("cut_interventions", cut_tables(measured, sources))
        assert set(cuts.filter(adding)["circuit"]) == of_addition
        assert set(cuts.filter(subtracting)["circuit"]) == of_subtraction
        numbers = cuts["intervention"].unique().sort()
        assert numbers.to_list() == list(range(len(numbers)))


def test_faithfulness_of_cuts_is_equation_2(measured: Tables, cuts: pl.DataFrame):
    shuffled = runs(cuts, measured["pairs"], "cut").sample(fraction=1, shuffle=True, seed=1)
    of_another_experiment = runs(cuts, measured["pairs"], "bag")  # with the same numbers
    given = only(measured, "pairs", "bootstrap_weights") | {"cut_interventions": cuts}
    table = ask("cut_faithfulness", given | {"runs": pl.concat([of_another_experiment, shuffled])})
    assert table.height == cuts["intervention"].n_unique()
    for row in table.iter_rows(named=True):
        expected = by_brute_force(row, shuffled, cuts, measured["bootstrap_weights"])
        assert [row[measure] for measure in MEASURES] == pytest.approx(expected, rel=1e-6)
        evaluated = {"operator": row["operator"], "split": "evaluation"}
        assert row["majority_accuracy"] == made.majority(measured["pairs"], **evaluated)
    ends_are_ends(table)


def test_a_subject_that_knows_nothing_has_empty_tables(measured: Tables, cuts: pl.DataFrame):
    kept = {"circuit_heads": heads({})}
    patterns = frame(
        operator=["add"],
        layer=[0],
        head=[0],
        query_position=["last"],
        key_position=["op1"],
        weight=[1.0],
    )
    patterns = patterns.cast({"weight": pl.Float32}).clear()
    sources = ask("attention_sources", kept | {"attention_patterns": patterns})
    assert sources.is_empty()
    assert ask(
        "cut_interventions", kept | only(measured, "architecture") | {"attention_sources": sources}
    ).is_empty()
    none = {name: measured[name].clear() for name in ("runs", "pairs", "bootstrap_weights")}
    assert ask("cut_faithfulness", none | {"cut_interventions": cuts.clear()}).is_empty()
