"""The real queries about circuits of neurons, cuts and faithfulness against brute force, on made tables with planted truths."""

import numpy as np
import polars as pl
import pytest

from tests import made
from tests.made import HEADS, KS, LAYERS, NEURONS, NL, OPERATORS, SITES, Tables, ask, frame, late_layers, of, runs, top


@pytest.fixture(scope="module")
def measured() -> Tables:
    return made.measured()


@pytest.fixture(scope="module")
def effects(measured: Tables) -> pl.DataFrame:
    return made.effects(measured)


def heads(kept: dict[str, list[tuple[int, int]]]) -> pl.DataFrame:
    rows = [(o, layer, head) for o, pairs in kept.items() for layer, head in pairs]
    return pl.DataFrame(rows, schema={"operator": pl.String, "layer": pl.Int16, "head": pl.Int16}, orient="row")


ALL_HEADS = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
KEPT = {"add": [(0, 1), (2, 0)], "subtract": ALL_HEADS}


def left_out(patches: pl.DataFrame, component: str) -> set[tuple]:
    """(layer, unit, position) of what is ablated; unit None: all of the layer."""
    rows = patches.filter(component=component).select("layer", "units", "position").rows()
    return {(layer, unit, position) for layer, units, position in rows for unit in ([None] if units is None else units)}


@pytest.fixture
def circuits(effects: pl.DataFrame, measured: Tables) -> pl.DataFrame:
    given = {"neuron_effects": effects, "circuit_heads": heads(KEPT), "architecture": measured["architecture"]}
    return ask("neuron_circuit_interventions", given, neurons_per_layer=[0, 2, 6, 9], random_circuits=2)


def test_a_circuit_of_neurons_leaves_out_all_others(effects: pl.DataFrame, circuits: pl.DataFrame):
    rankings = {"effect": "rank", "effect_plus_std": "rank_mean_plus_std", "logit_effect": "rank_logit", "attribution": "rank"}
    seen = []
    for (_, operator, circuit, kept, k, seed), patches in circuits.group_by(
        "intervention", "operator", "circuit", "heads", "neurons_per_layer", "seed", maintain_order=True
    ):
        seen.append((operator, circuit, k, seed))
        if circuit in ("everything", "nothing"):
            assert (kept, k) == ((LAYERS * HEADS, NEURONS) if circuit == "everything" else (0, 0))
            ablated = {(layer, None, "all") for layer in range(LAYERS)} if circuit == "nothing" else set()
            assert left_out(patches, "head") == left_out(patches, "mlp") == ablated
            continue
        assert kept == len(KEPT[operator])
        assert left_out(patches, "head") == {(layer, h, "all") for layer, h in ALL_HEADS if (layer, h) not in KEPT[operator]}
        neurons, ranking = left_out(patches, "neuron"), circuit.removeprefix("first_mlp_")
        sites = [s for s in SITES if (s[1] == "last") == (circuit == ranking)] if circuit != "heads" else []
        for layer, position in sites:
            where = "all" if position == "last" else position
            here = {n for at, n, p in neurons if (at, p) == (layer, where)}
            assert len(here) == NEURONS - k
            if ranking != "random":
                method = "attribution" if ranking == "attribution" else "exact"
                wanted = top(effects, rankings[ranking], k, method=method, operator=operator, layer=layer, position=position)
                assert here == set(range(NEURONS)) - wanted
        assert len(neurons) == (NEURONS - k) * len(sites)
    several = [(p + r, k, s) for p in ("", "first_mlp_") for k in (0, 2)
               for r, s in [*((r, None) for r in rankings), ("random", 0), ("random", 1)]]  # fmt: skip
    single = [("everything", NEURONS, None), ("nothing", 0, None), ("heads", NEURONS, None)]
    assert sorted(map(str, seen)) == sorted(str((o, *rest)) for o in OPERATORS for rest in [*several, *single])


def test_every_intervention_has_a_number_and_says_when_it_patches_nothing(circuits: pl.DataFrame):
    assert circuits["intervention"].unique().sort().to_list() == list(range(circuits["intervention"].max() + 1))
    idle = circuits.filter(component="none")
    assert idle.select("operator", "circuit", "position", "replacement").rows() == [
        ("add", "everything", None, None), ("subtract", "everything", None, None), ("subtract", "heads", None, None)
    ]  # fmt: skip
    assert set(circuits.filter(pl.col("component") != "none")["replacement"]) == {"mean"}
    assert set(circuits["split"]) == {"evaluation"}
    random = circuits.filter(circuit="random", neurons_per_layer=2, layer=1, component="neuron")["units"].to_list()
    assert len({tuple(units) for units in random}) > 1


def test_without_late_layers_there_are_circuits_of_the_first(effects: pl.DataFrame, measured: Tables):
    first = {"neuron_effects": effects.filter(layer=0), "circuit_heads": heads({}), "architecture": measured["architecture"]}
    table = ask("neuron_circuit_interventions", first, neurons_per_layer=[2], random_circuits=1)
    assert {c for c in table["circuit"] if not c.startswith("first_mlp_")} == {"everything", "nothing", "heads"}
    assert set(table.filter(circuit="heads")["heads"]) == {0}


def test_a_heads_source_is_where_the_last_position_looks_most():
    weights = {(0, 1): (0.2, 0.1, 0.3, 0.4), (2, 0): (0.6, 0.25, 0.1, 0.0), (1, 0): (0.0, 1.0, 0.0, 0.0)}
    last = (
        pl.concat(
            frame(layer=[layer], head=[head], key_position=[["op1", "operator", "op2", "last"]], weight=[list(ws)])
            for (layer, head), ws in weights.items()
        )
        .explode("key_position", "weight")
        .with_columns(operator=pl.lit("add"), query_position=pl.lit("last"))
    )
    others = last.with_columns(query_position=pl.lit("op2"), weight=1 - pl.col("weight"))
    given = {"attention_patterns": pl.concat([others, last]), "circuit_heads": heads({"add": KEPT["add"]})}
    table = ask("attention_sources", given)
    assert table.rows() == [("s", "add", 0, 1, "op2", 0.3, 0.2, 0.1, 0.3), ("s", "add", 2, 0, "op1", 0.6, 0.6, 0.25, 0.1)]


@pytest.fixture
def cuts(measured: Tables) -> pl.DataFrame:
    source = {"add": ["op2", "op1"], "subtract": ["op1", "op1", "op2", "op2", "op1", "op1"]}
    kept = heads(KEPT)
    sources = kept.with_columns(source=pl.Series([s for o in OPERATORS for s in source[o]]))
    given = {"attention_sources": sources, "circuit_heads": kept, "architecture": measured["architecture"]}
    return ask("cut_interventions", given)


def test_cuts_end_below_the_highest_reader(cuts: pl.DataFrame):
    for operator, below in {"add": {"op1": 2, "op2": 0}, "subtract": {"op1": 2, "op2": 1}}.items():
        edges = {(layer, s, "earlier") for s, highest in below.items() for layer in range(highest)}
        last = {(layer, "last", s) for s in below for layer in range(LAYERS)}
        ablated = {(layer, h, "all") for layer, h in ALL_HEADS if (layer, h) not in KEPT[operator]}
        expected = {
            "everything": (set(), set(), 6), "nothing": ({(n, None, "all") for n in range(LAYERS)}, set(), 0),
            "circuit": (ablated, set(), len(KEPT[operator])), "circuit_cut": (ablated, edges, len(KEPT[operator])),
            "model_cut": (set(), edges, 6), "last_cut": (ablated, last, len(KEPT[operator])),
        }  # fmt: skip
        mine = cuts.filter(operator=operator)
        assert set(mine["circuit"]) == set(expected)
        for circuit, (without, cut, kept) in expected.items():
            patches = mine.filter(circuit=circuit)
            assert patches["intervention"].n_unique() == 1
            assert left_out(patches, "head") == without
            assert left_out(patches, "mlp") == (without if circuit == "nothing" else set())
            assert set(patches.filter(component="edge").select("layer", "position", "key_position").rows()) == cut
            assert set(patches["heads"]) == {kept}
    assert cuts["intervention"].unique().sort().to_list() == list(range(12))
    assert cuts.filter(component="edge")["units"].null_count() == cuts.filter(component="edge").height
    assert set(cuts.filter(component="edge")["replacement"]) == {"zero"}


OF_HEADS = frame(
    operator=["add"], circuit=["effect"], heads=[3], seed=pl.Series([None], dtype=pl.Int32), faithfulness=[0.5], mean_of_ratios=[0.4],
    ci_low=[0.3], ci_high=[0.7], accuracy=[0.9], prompts=[8],
)  # fmt: skip


KEYS = ["operator", "circuit", "heads", "neurons_per_layer", "seed"]


def nl_of(said: pl.DataFrame, interventions: pl.DataFrame, **keys: object) -> pl.DataFrame:
    """The prompts of one circuit, with their NL."""
    [number] = interventions.filter(*(pl.col(c).eq_missing(v) for c, v in keys.items()))["intervention"].unique()
    answers = said.filter(intervention=number).sort("pair").with_columns(pl.col(pl.Float32).cast(float))
    return answers.with_columns(nl=NL)


def test_faithfulness_is_equation_2(measured: Tables, circuits: pl.DataFrame, cuts: pl.DataFrame):
    experiments = {"neuron_circuit": circuits, "cut": cuts}
    said = {name: runs(t, measured["pairs"], name).sample(fraction=1, shuffle=True, seed=1) for name, t in experiments.items()}
    given = of(measured, "pairs", "bootstrap_weights") | {
        "head_faithfulness": OF_HEADS, "neuron_circuit_interventions": circuits, "cut_interventions": cuts, "runs": pl.concat(said.values())
    }  # fmt: skip
    table = ask("faithfulness", given)
    head_circuit = ("add", "effect", 3, None, None, "head_circuit", 0.5, 0.4, 0.3, 0.7, 0.9, 8)
    assert table.filter(experiment="head_circuit").row(0)[1:] == head_circuit
    for name, interventions in experiments.items():
        assert table.filter(experiment=name).height == interventions["intervention"].n_unique()
        for row in table.filter(experiment=name).iter_rows(named=True):
            mine = nl_of(said[name], interventions, **{c: row[c] for c in KEYS if c in interventions.columns})
            least, most = (
                nl_of(said[name], interventions, operator=row["operator"], circuit=c)["nl"].to_numpy() for c in ("nothing", "everything")
            )
            gained, whole = mine["nl"].to_numpy() - least, most - least
            weights = measured["bootstrap_weights"].filter(operator=row["operator"], split="evaluation")["weights"].to_list()
            ratios = [gained @ np.array(w) / (whole @ np.array(w)) for w in weights]
            means = [gained.mean() / whole.mean(), (gained / whole).mean()]
            expected = [*means, *np.quantile(ratios, [0.05, 0.95]), mine["correct"].mean(), 8]
            measures = ["faithfulness", "mean_of_ratios", "ci_low", "ci_high", "accuracy", "prompts"]
            assert [row[measure] for measure in measures] == pytest.approx(expected, rel=1e-6)
    ends = table.filter(pl.col("circuit").is_in(["everything", "nothing"]))
    assert ends["faithfulness"].to_list() == ends["mean_of_ratios"].to_list() == ends["ci_low"].to_list()
    assert set(ends.select("circuit", "faithfulness").rows()) == {("everything", 1.0), ("nothing", 0.0)}


def test_a_subject_that_knows_nothing_has_empty_tables(measured: Tables, effects: pl.DataFrame, circuits: pl.DataFrame, cuts: pl.DataFrame):
    none = {name: measured[name].clear() for name in ("runs", "pairs", "neuron_attributions", "bootstrap_weights")}
    patched = ask("neuron_interventions", of(measured, "architecture") | {"late_layers": late_layers(None)})
    assert ask("neuron_effects", none | {"neuron_interventions": patched}).is_empty()
    empty = {"neuron_effects": effects.clear(), "circuit_heads": heads({}), **of(measured, "architecture")}
    for stage in ("attribution_agreement", "ranking_agreement", "operator_overlaps"):
        assert ask(stage, of(empty, "neuron_effects"), ks=KS).is_empty()
    assert ask("neuron_circuit_interventions", empty, neurons_per_layer=[2], random_circuits=1).is_empty()
    patterns = frame(operator=["add"], layer=[0], head=[0], query_position=["last"], key_position=["op1"], weight=[1.0]).clear()
    sources = ask("attention_sources", of(empty, "circuit_heads") | {"attention_patterns": patterns})
    assert sources.is_empty()
    assert ask("cut_interventions", of(empty, "circuit_heads", "architecture") | {"attention_sources": sources}).is_empty()
    given = {**of(none, "runs", "pairs", "bootstrap_weights"), "head_faithfulness": OF_HEADS.clear(),
             "neuron_circuit_interventions": circuits.clear(), "cut_interventions": cuts.clear()}  # fmt: skip
    assert ask("faithfulness", given).is_empty()
