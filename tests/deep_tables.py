"""Make tables of a model of 30 layers with 14 heads, whose prompts begin with solved examples.

Tests draw figures of circuits, neurons, knock-outs, mediation and theories from them.
"""

from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.text import Text

from stages.bag import figures as bag
from stages.circuit import figures as circuit
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Tables
from stages.mediation.conditions import CONDITIONS, TASKS
from stages.theories import figures as theories
from tests.circuit.figure_tables import DOCUMENTED, KINDS, made

LAYERS, HEADS, LATE, NEURONS = 30, 14, 14, 256
OPERATORS = ["add", "subtract", "multiply"]
WHY = "the model answers only 12 prompts of this split correctly"  # why there is no division
KS = [10, 25, 50, 100, 200]
EXAMPLES = [f"token {n}" for n in range(36)]
# operands of two tokens
QUESTION = ["op1, last but 1", "op1", "operator", "op2, last but 1", "op2", "last"]
POSITIONS = {"op1_first": 36, "op1": 37, "operator": 38, "op2_first": 39, "op2": 40, "last": 41}
# heads of each circuit; of multiplication, no smaller one is faithful enough
CIRCUITS = {"add": 32, "subtract": 9, "multiply": LAYERS * HEADS}
SITES = [(0, "op1"), (0, "operator"), (0, "op2")] + [(n, "last") for n in range(LATE, LAYERS)]
RANKED = [
    ("effect", "effect_plus_std"),
    ("effect", "logit_effect"),
    ("effect_plus_std", "logit_effect"),
]
Keys = dict[str, Iterable[Any]]


def filled(name: str, keys: Keys, **columns: Any) -> pl.DataFrame:
    """Return a table with a row for each combination of the keys; other columns are null.

    keys: column -> its values, or several columns -> tuples of values; columns: values of all rows
    """
    rows = []
    for combination in product(*keys.values()):
        row: list[Any] = []
        for value in combination:
            row += value if isinstance(value, tuple) else (value,)
        rows.append(row)
    names = " ".join(keys).split()
    table = pl.DataFrame(rows, names, orient="row", infer_schema_length=None)
    table = table.with_columns(subject=pl.lit("deep"), **columns)
    documented = DOCUMENTED[name].columns.items()
    kinds = {column: KINDS[kind] for column, (kind, _) in documented}
    missing = [pl.lit(None).alias(column) for column in kinds if column not in table.columns]
    return table.with_columns(missing).select(list(kinds)).cast(kinds)


def component_effects(random: np.random.Generator) -> pl.DataFrame:
    """Return effects of which most are small, except for some heads and the late MLPs."""
    units = [("mlp", layer, None) for layer in range(LAYERS)]
    units += [("head", layer, head) for layer, head in product(range(LAYERS), range(HEADS))]
    keys = {"operator": OPERATORS, "component layer head": units, "position": drawing.ROLES}
    table = filled("component_effects", keys)
    late = pl.col("component").eq("mlp") & pl.col("position").eq("last") & (pl.col("layer") >= LATE)
    strong = table.select(late).to_series().to_numpy() | (random.random(table.height) < 0.03)
    logits = random.normal(0, 0.02, table.height) + strong * random.uniform(0.2, 4, table.height)
    ends = logits - np.abs(logits) / 5, logits + np.abs(logits) / 5
    return table.with_columns(
        effect=np.sinh(3 * logits), ci_low=np.sinh(3 * ends[0]), ci_high=np.sinh(3 * ends[1]),
        logit_effect=logits, logit_ci_low=ends[0], logit_ci_high=ends[1],
    )  # fmt: skip


def attention_patterns(random: np.random.Generator) -> pl.DataFrame:
    """Return patterns in which the first token gets most of the attention."""
    tokens = [*EXAMPLES, *QUESTION]
    weights = random.dirichlet(np.full(len(tokens), 0.2), len(OPERATORS) * LAYERS * HEADS) * 0.4
    weights[:, 0] += 0.6
    keys = {
        "operator": OPERATORS,
        "layer": range(LAYERS),
        "head": range(HEADS),
        "query_position": ["last"],
        "key_position": tokens,
    }
    return filled("attention_patterns", keys, weight=weights.ravel())


def circuits(random: np.random.Generator) -> Tables:
    """Return the tables of the chapter circuit."""
    counts = [*range(13), 16, 20, 24, 32, 48, 64, LAYERS * HEADS]
    kinds = [("effect", None), ("logit_effect", None), ("own_means", None)]
    kinds += [("random", 0), ("random", 1)]
    sizes = {"operator": OPERATORS, "circuit seed": kinds, "heads": counts}
    faithfulness = np.tile(np.tanh(np.array(counts) / 20), len(OPERATORS) * len(kinds))
    sized = _crossed("head_faithfulness", sizes).with_columns(faithfulness=faithfulness)
    targets = [(0.5, 11), (0.8, 24), (0.9, 32), (0.99, None)]
    smallest = _crossed("smallest_circuits", {"operator": OPERATORS, "target heads": targets})
    heads = []
    for operator, size in CIRCUITS.items():
        for rank, number in enumerate(random.permutation(LAYERS * HEADS)[:size].tolist(), 1):
            layer, head = divmod(number, HEADS)
            place = {"operator": operator, "layer": layer, "head": head}
            heads.append(place | {"rank": rank, "reached": True})
    probes = {"operator": OPERATORS, "layer": range(LAYERS), "position": drawing.ROLES}
    stability = {
        "operator": OPERATORS,
        "measure": circuit.MEASURES,
        "component": ["both", "head", "mlp"],
    }
    pairs_found = [{"operator": operator, "found": 50} for operator in OPERATORS]
    pairs_found.append({"operator": "divide", "found": 0, "problem": WHY})
    return {
        "component_effects": component_effects(random),
        "component_stability": _crossed("component_stability", stability),
        "head_faithfulness": sized,
        "smallest_circuits": smallest.with_columns(faithfulness="target"),
        "circuit_heads": made("circuit_heads", heads),
        "probes": _crossed("probes", probes),
        "attention_patterns": attention_patterns(random),
        "cut_faithfulness": _crossed(
            "cut_faithfulness",
            {"operator": OPERATORS, "circuit": circuit.CUTS},
        ),
        "late_layers": made("late_layers", [{"first_layer": LATE, "layers": LAYERS}]),
        "pairs_found": made("pairs_found", pairs_found),
        "pairs": pl.DataFrame({"operator": OPERATORS, "positions": [POSITIONS] * len(OPERATORS)}),
    }


def neuron_effects(random: np.random.Generator) -> pl.DataFrame:
    """Return effects of which some are below 0; those of later layers are larger."""
    scale = np.linspace(0.3, 3, len(SITES))[:, None] / 20
    logits = (random.normal(size=(len(OPERATORS), len(SITES), NEURONS)) + 0.3) * scale
    ranks = (-logits).argsort(-1).argsort(-1).ravel() + 1
    keys = {
        "operator": OPERATORS,
        "method": ["exact"],
        "layer position": SITES,
        "neuron": range(NEURONS),
    }
    values = {"logit_effect": logits.ravel(), "effect": np.sinh(20 * logits).ravel()}
    return filled("neuron_effects", keys, **values, rank=ranks, rank_logit=ranks)


def neurons(random: np.random.Generator) -> Tables:
    """Return the tables of the chapter neurons."""
    sites: Keys = {"operator": OPERATORS, "layer position": SITES}
    circuit_names = [*drawing.RANKINGS, *(f"first_mlp_{name}" for name in drawing.RANKINGS)]
    top: Keys = {
        "operator": OPERATORS,
        "experiment": ["neuron_circuit"],
        "circuit": circuit_names,
        "neurons_per_layer": [0, *KS],
    }
    pairs = [("add", "multiply"), ("add", "subtract"), ("multiply", "subtract")]
    overlaps: Keys = {
        "ranking": ["effect", "logit_effect"], "operator_a operator_b": pairs,
        "layer position": [*SITES, (None, "last")], "k": [50, 100, 200],
    }  # fmt: skip
    numbers: Keys = {"layer": [0], "neuron": range(NEURONS), "number": range(100)}
    chance = pl.col("k") / NEURONS
    return {
        "neuron_effects": neuron_effects(random),
        "attribution_agreement": _crossed(
            "attribution_agreement",
            sites | {"against": ["effect", "logit_effect"], "k": KS},
        ).with_columns(chance=chance),
        "attribution_recall": made("attribution_recall", []),
        "ranking_agreement": _crossed(
            "ranking_agreement",
            sites | {"ranking_a ranking_b": RANKED, "k": KS},
        ).with_columns(chance=chance),
        "faithfulness": _crossed("faithfulness", top),
        "operator_overlaps": _crossed("operator_overlaps", overlaps),
        "token_activations": filled(
            "token_activations",
            numbers,
            activation=random.normal(size=NEURONS * 100),
        ),
    }


def mediation() -> Tables:
    """Return the tables of the chapter mediation."""
    kinds = [
        *product(TASKS[:3], CONDITIONS[:3]),
        ("retrieval", "query_varies"),
        ("factual", "entity_varies"),
    ]
    classes = ["early", "op1", "operator", "middle", "op2", "late", "last"]
    places: list = list(product(("mlp", "attention"), [None], classes))
    places += product(["head"], range(HEADS), ["last"])
    effects = {
        "task condition": kinds,
        "operator": ["all", *OPERATORS],
        "which": ["all"],
        "layer": range(LAYERS),
        "component head position_class": places,
    }
    sums = {
        "task condition": kinds,
        "operator": ["all"],
        "which": ["all", "answered"],
        "pairs": [9],
    }
    return {
        "mediation_effects": _crossed("mediation_effects", effects),
        "relative_importance": _crossed("relative_importance", sums),
    }


def others() -> Tables:
    """Return tables of the chapters theories and bag."""
    places = [("op1", "op1"), ("op2", "op2"), ("last", "result")]
    known = [theory for theory in theories.NUMBER_THEORIES if theory != "shuffled"]
    helices: Keys = {
        "operator": OPERATORS,
        "position quantity": places,
        "layer": range(LAYERS + 1),
        "theory": known,
        "numbers_below": [None, 100],
    }
    knockouts: Keys = {
        "operator": OPERATORS,
        "layer": range(LATE, LAYERS),
        "neuron": range(20),
        "criterion": bag.CRITERIA,
        "ablation": ["zero"],
        "null_neurons": [99],
    }
    fits = _crossed("helix_fits", helices)
    effects = fits.select(
        "subject",
        "operator",
        "layer",
        "position",
        "theory",
        "numbers_below",
        restored="explained",
    )
    return {
        "helix_fits": fits,
        "helix_effects": effects.with_columns(ci_low="restored", ci_high="restored"),
        "knockouts_by_neuron": _crossed("knockouts_by_neuron", knockouts),
    }


def _crossed(name: str, keys: Keys) -> pl.DataFrame:
    """Return a table with a row for each combination of the keys; other numbers are random."""
    return made(name, filled(name, keys).select(" ".join(keys).split()).to_dicts())


def tables() -> Tables:
    """Return all tables, equal in every call."""
    random = np.random.default_rng(0)
    return circuits(random) | neurons(random) | mediation() | others()


def crowded(figure: Figure) -> list[tuple[str, str]]:
    """Return pairs of tick labels and texts of a panel that overlap when they are drawn."""
    figure.draw_without_rendering()
    pairs = []
    for axis in figure.axes:
        for texts in (axis.get_xticklabels(), axis.get_yticklabels(), axis.texts):
            visible = [text for text in texts if text.get_visible() and text.get_text()]
            pairs += [pair for pair in pairwise(visible) if _overlap(*pair)]
    return [(first.get_text(), second.get_text()) for first, second in pairs]


def _overlap(first: Text, second: Text) -> bool:
    """Return whether neighbours overlap; rotated texts are compared across their lines."""
    angle = np.radians(first.get_rotation())
    if np.isclose(np.sin(2 * angle), 0):
        box, other = first.get_window_extent(), second.get_window_extent()
        return box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))
    start = first.get_transform().transform(first.get_position())
    across = second.get_transform().transform(second.get_position())[0] - start[0]
    height = first.get_fontsize() / 72 * first.figure.dpi
    return bool(abs(across * np.sin(angle)) < height)
