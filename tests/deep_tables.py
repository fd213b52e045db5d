"""Made tables of a model of 30 layers with 14 heads, whose prompts begin with solved examples.

`tables()` has all that the figures of circuit, neurons, bag, mediation and theories are drawn from.
"""

from itertools import product
from typing import Any

import numpy as np
import polars as pl

from stages.bag import figures as bag
from stages.circuit import figures as circuit
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Tables
from stages.mediation.conditions import CONDITIONS, TASKS
from stages.theories import figures as theories
from tests.circuit.figure_tables import DOCUMENTED, KINDS, made

LAYERS, HEADS, LATE, NEURONS = 30, 14, 14, 256
OPERATORS = ["add", "subtract", "multiply"]
KS = [10, 25, 50, 100, 200]
# 36 tokens of solved examples, then two-digit operands of two tokens each
EXAMPLES = [f"token {n}" for n in range(36)]
QUESTION = ["token 36", "op1", "operator", "token 39", "op2", "last"]
SITES = [(0, "op1"), (0, "operator"), (0, "op2")] + [(layer, "last") for layer in range(LATE, LAYERS)]
RANKED = [("effect", "effect_plus_std"), ("effect", "logit_effect"), ("effect_plus_std", "logit_effect")]


def crossed(name: str, keys: dict[str, list[Any]], **columns: Any) -> pl.DataFrame:
    """A table with a row for each combination of the keys; columns: of as many values as rows."""
    kinds = {column: KINDS.get(kind, pl.Null) for column, (kind, _) in DOCUMENTED[name].columns.items()}
    rows = pl.DataFrame(list(product(*keys.values())), list(keys), orient="row")
    rows = rows.with_columns(subject=pl.lit("deep")).with_columns(**columns)
    missing = [pl.lit(None).alias(column) for column in kinds if column not in rows.columns]
    return rows.with_columns(missing).select(pl.col(column).cast(kind) for column, kind in kinds.items())


def component_effects(random: np.random.Generator) -> pl.DataFrame:
    """Most components do nothing; some heads and the late MLPs move the answer."""
    units = [("mlp", layer, None) for layer in range(LAYERS)]
    units += [("head", layer, head) for layer, head in np.ndindex(LAYERS, HEADS)]
    keys = {"operator": OPERATORS, "unit": range(len(units)), "position": drawing.ROLES}
    size = len(OPERATORS) * len(units) * len(drawing.ROLES)
    logits = random.normal(scale=0.02, size=size) + random.exponential(0.4, size) * (random.random(size) < 0.04)
    shape = pl.DataFrame(units, ["component", "layer", "head"], orient="row").with_row_index("unit")
    rows = pl.DataFrame(list(product(*keys.values())), list(keys), orient="row").join(
        shape.cast({"unit": pl.Int64}), on="unit", maintain_order="left"
    )
    late = ((rows["component"] == "mlp") & (rows["layer"] >= LATE) & (rows["position"] == "last")).to_numpy()
    logits += late * random.uniform(0.5, 4, size)
    spread = np.abs(logits) / 5 + 0.02
    values = {
        "logit_effect": logits, "logit_ci_low": logits - spread, "logit_ci_high": logits + spread,
        "effect": np.sinh(3 * logits), "ci_low": np.sinh(3 * (logits - spread)), "ci_high": np.sinh(3 * (logits + spread)),
    }  # fmt: skip
    names = list(DOCUMENTED["component_effects"].columns)
    rows = rows.with_columns(subject=pl.lit("deep"), **values)
    rows = rows.with_columns(pl.lit(None).alias(n) for n in names if n not in rows.columns)
    kinds = {n: KINDS[kind] for n, (kind, _) in DOCUMENTED["component_effects"].columns.items()}
    return rows.select(pl.col(n).cast(kind) for n, kind in kinds.items())


def attention_patterns(random: np.random.Generator) -> pl.DataFrame:
    """The first token takes most of the attention, and the examples some of the rest."""
    keys = [*EXAMPLES, *QUESTION]
    weights = random.dirichlet(np.full(len(keys), 0.2), (len(OPERATORS), LAYERS, HEADS)) * 0.4
    weights[..., 0] += 0.6
    sides = {
        "operator": OPERATORS, "layer": range(LAYERS), "head": range(HEADS), "query_position": ["last"], "key_position": keys,
    }  # fmt: skip
    return crossed("attention_patterns", sides, weight=weights.ravel())


def neuron_effects(random: np.random.Generator) -> pl.DataFrame:
    """Some tenths of a layer's neurons have an effect below 0; later layers have larger ones."""
    shape = (len(OPERATORS), len(SITES), NEURONS)
    scale = np.linspace(0.3, 3, len(SITES))[:, None]
    logits = (random.standard_t(2, shape) + 0.3) * scale / 20
    keys = {"operator": OPERATORS, "site": range(len(SITES)), "neuron": range(NEURONS)}
    layers, positions = ([site[i] for site in SITES for _ in range(NEURONS)] * len(OPERATORS) for i in (0, 1))
    ranks = (-logits).argsort(-1).argsort(-1) + 1
    columns = {
        "layer": pl.Series(layers), "position": pl.Series(positions), "method": pl.lit("exact"), "effect": np.sinh(5 * logits).ravel(),
        "logit_effect": logits.ravel(), "rank": ranks.ravel(), "rank_logit": ranks.ravel(),
    }  # fmt: skip
    return crossed("neuron_effects", keys, **columns)


def by_site(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"operator": o, "layer": n, "position": p} | row for o in OPERATORS for n, p in SITES for row in rows]


def neurons(random: np.random.Generator) -> Tables:
    agreement = by_site([{"against": a, "k": k} for a in ("effect", "logit_effect") for k in KS])
    chances = {k: k / NEURONS for k in KS}
    shared = by_site([{"ranking_a": a, "ranking_b": b, "k": k, "chance": chances[k]} for a, b in RANKED for k in KS])
    top = [
        {"operator": o, "experiment": "neuron_circuit", "circuit": prefix + ranking, "neurons_per_layer": k, "heads": 9}
        for o in OPERATORS for prefix in ("", "first_mlp_") for ranking in drawing.RANKINGS for k in (0, *KS)
    ]  # fmt: skip
    top += [{"operator": o, "experiment": "neuron_circuit", "circuit": "heads", "heads": 9} for o in OPERATORS]
    pairs = [("add", "multiply"), ("add", "subtract"), ("multiply", "subtract")]
    overlaps = [
        {"ranking": r, "operator_a": a, "operator_b": b, "layer": layer, "position": p, "k": k}
        for r in ("effect", "logit_effect") for a, b in pairs for layer, p in [*SITES, (None, "last")] for k in (50, 100, 200)
    ]  # fmt: skip
    numbers = {"layer": [0], "neuron": range(NEURONS), "number": range(100)}
    return {
        "neuron_effects": neuron_effects(random),
        "attribution_agreement": made("attribution_agreement", agreement),
        "ranking_agreement": made("ranking_agreement", shared),
        "faithfulness": made("faithfulness", top),
        "operator_overlaps": made("operator_overlaps", overlaps),
        "token_activations": crossed("token_activations", numbers, activation=random.normal(size=NEURONS * 100)),
    }


def circuits(random: np.random.Generator) -> Tables:
    counts = [*range(13), 16, 20, 24, 32, 48, 64, LAYERS * HEADS]
    sized = [
        {"operator": o, "circuit": c, "heads": n, "seed": s, "faithfulness": np.tanh(n / 20), "ci_low": None, "ci_high": None}
        for o in OPERATORS for c, s in [("effect", None), ("logit_effect", None), ("own_means", None), ("random", 0), ("random", 1)]
        for n in counts
    ]  # fmt: skip
    smallest = [{"operator": o, "target": t, "heads": n} for o in OPERATORS for t, n in [(0.5, 11), (0.8, 24), (0.9, 32), (0.99, None)]]
    # no circuit of multiplication is smaller than all heads
    sizes = {"add": 32, "subtract": 9, "multiply": LAYERS * HEADS}
    heads = [
        {"operator": o, "layer": int(n) // HEADS, "head": int(n) % HEADS, "rank": rank + 1, "reached": o != "multiply"}
        for o in OPERATORS for rank, n in enumerate(random.permutation(LAYERS * HEADS)[: sizes[o]])
    ]  # fmt: skip
    probes = [
        {"operator": o, "layer": n, "position": p, "accuracy": 1 / (1 + np.exp((LATE - n) / 3)) if p == "last" else 0.2}
        for o in OPERATORS for n in range(LAYERS) for p in drawing.ROLES
    ]  # fmt: skip
    stability = {"operator": OPERATORS, "measure": circuit.MEASURES, "component": ["both", "head", "mlp"]}
    cuts = [{"operator": o, "circuit": c} for o in OPERATORS for c in circuit.CUTS]
    found = [{"operator": o, "problem": None} for o in OPERATORS]
    found += [{"operator": "divide", "problem": "the model answers only 12 prompts of this split correctly", "found": 0}]
    first = {"op1": 37, "operator": 38, "op2": 40, "last": 41, "op1_first": 36, "op2_first": 39}
    return {
        "component_effects": component_effects(random),
        "component_stability": made("component_stability", [dict(zip(stability, v, strict=True)) for v in product(*stability.values())]),
        "head_faithfulness": made("head_faithfulness", sized),
        "smallest_circuits": made("smallest_circuits", smallest),
        "circuit_heads": made("circuit_heads", heads),
        "probes": made("probes", probes),
        "attention_patterns": attention_patterns(random),
        "cut_faithfulness": made("cut_faithfulness", cuts),
        "late_layers": made("late_layers", [{"first_layer": LATE, "layers": LAYERS}]),
        "pairs_found": made("pairs_found", found),
        "pairs": pl.DataFrame({"operator": OPERATORS, "positions": [first] * len(OPERATORS)}),
    }


def mediation() -> Tables:
    kinds = [(task, condition) for task in TASKS[:3] for condition in CONDITIONS[:3]]
    kinds += [("retrieval", "query_varies"), ("factual", "entity_varies")]
    classes = ["early", "op1", "operator", "middle", "op2", "late", "last"]
    units = [("mlp", None), ("attention", None)]
    places = [(u, h, p) for (u, h), p in product(units, classes)] + [("head", h, "last") for h in range(HEADS)]
    effects = [
        {"task": t, "condition": c, "operator": o, "which": "all", "component": u, "layer": layer, "head": h, "position_class": p}
        for t, c in kinds for o in ["all", *OPERATORS] for layer in range(LAYERS) for u, h, p in places
    ]  # fmt: skip
    sums = [{"task": t, "condition": c, "operator": "all", "which": w, "pairs": 9} for t, c in kinds for w in ("all", "answered")]
    return {"mediation_effects": made("mediation_effects", effects), "relative_importance": made("relative_importance", sums)}


def helices() -> Tables:
    positions = {"op1": "op1", "op2": "op2", "last": "result"}
    rows = [
        {"operator": o, "position": p, "quantity": q, "layer": n, "theory": t, "numbers_below": below}
        for o in OPERATORS for p, q in positions.items() for n in range(LAYERS + 1) for t in theories.OF_NUMBERS if t != "shuffled"
        for below in (None, 100)
    ]  # fmt: skip
    effects = [{k: v for k, v in row.items() if k != "quantity"} for row in rows]
    return {"helix_fits": made("helix_fits", rows), "helix_effects": made("helix_effects", effects)}


def knockouts(random: np.random.Generator) -> Tables:
    neurons = [
        {"operator": o, "layer": n, "neuron": i, "membership": m, "ablation": "zero", "null_neurons": 99, "p_value": random.uniform(0.01, 1)}
        for o in OPERATORS for n in range(LATE, LAYERS) for i in range(20) for m in bag.MEMBERSHIPS
    ]  # fmt: skip
    return {"knockouts_by_neuron": made("knockouts_by_neuron", neurons)}


def tables() -> Tables:
    """All tables, the same every time."""
    random = np.random.default_rng(0)
    return circuits(random) | neurons(random) | mediation() | helices() | knockouts(random)
