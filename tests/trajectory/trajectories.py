"""Make two checkpoints of a training run, and ask the queries about them."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from tests.bag import knocked
from tests.bag.knocked import ENDS, EVEN, LOW, MEANS, SET, Answer, Prompt, Units
from tests.made import OPERATORS, Tables, ask, frame, late_layers

POINT, LAST = "s", "last"
NEURONS, LAYERS = 12, (1, 2)  # neurons of each layer; late layers, which layer 0 is not
LATE = {(layer, n) for layer in LAYERS for n in range(NEURONS)}
TYPES = {
    EVEN: ("op1", "modulo"),
    LOW: ("op2", "range"),
    ENDS: ("result", "pattern"),
    SET: ("result", "multi-result"),
}
KEY = ["operator", "layer", "neuron", "heuristic"]
COUNTS = [1, 3, 30]
SETTINGS = {
    "control_draws": 3,
    "knockout_seed": 0,
    "prompt_knockout_seed": 0,
    "neurons_per_layer": COUNTS,
}
SEVERAL: dict[str, Any] = {"subject": POINT, "last": LAST, "step": 750}
THRESHOLD = 0.5
PAIRS = knocked.prompts(per_seed=8)
Standing = dict[
    tuple[str, int, int, str], float
]  # (operator, layer, neuron, heuristic) -> chance-corrected score


def scores() -> pl.DataFrame:
    """Return the table scores of both checkpoints.

    Many scores are equal to the threshold or to each other, on one side of a neuron or on both.
    """
    rng = np.random.default_rng(5)
    rows = []
    for key in product(OPERATORS, (0, *LAYERS), range(NEURONS), TYPES):
        last = rng.choice([0.2, 0.4, THRESHOLD, 0.6, 0.7], 2, p=[0.7, 0.2, 0.05, 0.03, 0.02])
        point = last if rng.random() < 0.5 else rng.permutation([*last, 0.6, *[0.2] * 7])[:2]
        for subject, (top, bottom) in ((LAST, last), (POINT, point)):
            named = subject, *key, *TYPES[key[3]]
            rows += [(*named, "top", top), (*named, "bottom", bottom)]
    names = ["subject", *KEY, "quantity", "kind", "side", "chance_corrected"]
    made = columns(names, rows).filter(pl.col("chance_corrected") > 0.2)
    made = made.with_columns(pl.col("chance_corrected").cast(pl.Float32))
    return made.sample(fraction=1, shuffle=True, seed=1)


def columns(names: list[str], rows: Iterable[tuple]) -> pl.DataFrame:
    """Return a table with these columns."""
    return frame(**dict(zip(names, zip(*rows, strict=True), strict=True)))


def passing(scores: pl.DataFrame, subject: str) -> Standing:
    """Return the heuristics of a checkpoint's late neurons, in plain Python."""
    collected: Standing = {}
    rows = scores.filter(subject=subject).select(*KEY, "chance_corrected")
    for operator, layer, neuron, heuristic, chance_corrected in rows.iter_rows():
        if layer in LAYERS and chance_corrected >= THRESHOLD:
            key = (operator, layer, neuron, heuristic)
            collected[key] = max(chance_corrected, collected.get(key, 0))
    return collected


def neurons(
    scores: pl.DataFrame,
    subject: str = POINT,
    first: int | None = LAYERS[0],
    threshold: float | None = THRESHOLD,
) -> pl.DataFrame:
    setting = pl.DataFrame(
        {"threshold": [threshold]}, schema={"threshold": pl.Float64}
    ).drop_nulls()
    given = {"scores": scores, "label_setting": setting, "late_layers": late(first)}
    return ask("trajectory_neurons", given, subject=subject)


def both() -> pl.DataFrame:
    """Return the table trajectory_neurons of both points, in no order."""
    table = pl.concat([neurons(SCORES, POINT), neurons(SCORES, LAST)])
    return table.sample(fraction=1, shuffle=True, seed=1)


def late(first: int | None) -> pl.DataFrame:
    return late_layers(first).with_columns(subject=pl.lit(LAST))


def naming() -> pl.DataFrame:
    """Return which neurons there are, as far as the queries read it."""
    return columns(KEY[:3], product(OPERATORS, (0, *LAYERS), range(NEURONS)))


def interventions(
    standing: pl.DataFrame, pairs: pl.DataFrame, first: int | None = LAYERS[0], **settings: Any
) -> pl.DataFrame:
    given = {
        "trajectory_neurons": standing,
        "pairs": pairs,
        "prompt_associations": knocked.associations(pairs, MEANS),
    }
    return ask(
        "trajectory_interventions",
        given | {"late_layers": late(first), "naming": naming()},
        **SETTINGS | settings,
    )


def accuracy() -> pl.DataFrame:
    rows = []
    for n, operator in enumerate(OPERATORS):
        rows += [(operator, "train", 0.1 * n + 0.25), (operator, "held-out", 0.1 * n + 0.4)]
    table = columns(["operator", "split", "accuracy"], rows)
    return table.with_columns(majority_accuracy=pl.col("accuracy") / 2)


def measured(
    standing: pl.DataFrame, pairs: pl.DataFrame, table: pl.DataFrame, answer: Answer, **point: Any
) -> Tables:
    """Return what the queries measure for a model with these answers.

    standing: of both checkpoints.
    """
    runs = knocked.simulated(table, "trajectory", pairs, answer)
    given = {"runs": runs, "pairs": pairs, "trajectory_interventions": table}
    bag = given | {"trajectory_neurons": standing, "naming": naming(), "accuracy": accuracy()}
    return {
        "runs": runs.filter(experiment="trajectory"),
        "trajectory": ask("trajectory", bag, **SEVERAL | point),
        "knockouts": ask("trajectory_knockouts", given, **SEVERAL | point),
    }


def kinds(standing: pl.DataFrame) -> pl.DataFrame:
    return ask("trajectory_kinds", {"trajectory_neurons": standing, "naming": naming()}, **SEVERAL)


def units(standing: Standing, operator: str) -> Units:
    """Return the neurons that have a heuristic."""
    return {(layer, n) for o, layer, n, _ in standing if o == operator}


def own(standing: Standing, prompt: Prompt) -> dict[tuple[int, int], float]:
    """Return the neurons with a heuristic that a prompt satisfies -> their best such score."""
    collected: dict[tuple[int, int], float] = {}
    for (operator, layer, n, heuristic), chance_corrected in standing.items():
        if operator == prompt.operator and MEANS[heuristic](prompt):
            collected[layer, n] = max(chance_corrected, collected.get((layer, n), 0))
    return collected


def relabelled(
    point: Standing, last: Standing, operator: str, heuristics: list[str], draws: int = 4000
) -> np.ndarray:
    """Return the shared pairs of random relabellings of each layer's neurons at a checkpoint."""
    rng = np.random.default_rng(0)
    shared = np.zeros(draws)
    for layer in LAYERS:
        now, end = np.zeros((2, len(heuristics), NEURONS), bool)
        for (i, heuristic), n in product(enumerate(heuristics), range(NEURONS)):
            now[i, n] = (operator, layer, n, heuristic) in point
            end[i, n] = (operator, layer, n, heuristic) in last
        names = rng.permuted(np.tile(np.arange(NEURONS), (draws, 1)), axis=1)
        shared += (now[:, names] & end[:, None, :]).sum((0, 2))  # (heuristics, draws, neurons)
    return shared


SCORES = scores()
HERE, THERE = passing(SCORES, POINT), passing(SCORES, LAST)
COMMON = {key: chance_corrected for key, chance_corrected in HERE.items() if key in THERE}
