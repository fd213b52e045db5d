"""Made pairs of prompts for neuron overlap, and random runs of every unit on them."""

import numpy as np
import polars as pl

from tests.made import LOGITS, PROBABILITIES, Tables, architecture, ask, frame, late_layers
from tests.mediation import mediated
from tests.mediation.mediated import TASKS

TEMPLATES = ["in words", "in symbols"]  # of arithmetic
RANKS = {"effect": "rank", "logit_effect": "rank_logit", "size": "rank_size"}
QUESTIONS = ["arithmetic_symbols", "arithmetic_words", "own", "retrieval", "three_operands"]


def prompt_pairs(each: int = 4) -> pl.DataFrame:
    """The table mediation_pairs, in no order."""
    made = mediated.pairs(
        each, {**TASKS, "own": (["entity_varies"], [None], [["entity", "last"]] * 3)}
    )
    prompt = pl.col("tokens").cast(pl.List(pl.Int32))
    last = pl.struct(last=pl.col("tokens").list.len().cast(pl.Int16) - 1)
    made = made.with_columns(
        prompt,
        positions=last,
        counterfactual_tokens=prompt.list.reverse(),
        counterfactual_positions=last,
    )
    return made.sample(fraction=1, shuffle=True, seed=3)


def unit_pairs(each: int, count: int, seed: int = 0) -> pl.DataFrame:
    given = {"mediation_pairs": prompt_pairs(each)}
    return ask(
        "unit_mediation_pairs", given, arithmetic=TEMPLATES, mediated_pairs=count, unit_seed=seed
    )


def attributions(shape: pl.DataFrame) -> pl.DataFrame:
    """The table neuron_effects of the last layer: attribution is largest for neuron 0 by one
    operator, then for the last by the other.
    """
    [neurons], [layers] = shape["neurons"], shape["layers"]
    parts = []
    for operator, first in (("add", -10), ("subtract", 10 * neurons)):
        values = np.arange(neurons) + first * (np.arange(neurons) == 0)
        for method, effects in (("exact", -values), ("attribution", values)):
            parts.append(
                frame(operator=operator, method=method, neuron=np.arange(neurons), effect=effects),
            )
    return pl.concat(parts).with_columns(
        layer=pl.lit(layers - 1, pl.Int16),
        position=pl.lit("last"),
    )


def patched(shape: pl.DataFrame, first_layer: int | None, **settings: int) -> pl.DataFrame:
    """The table unit_mediation_interventions."""
    given = {
        "architecture": shape,
        "late_layers": late_layers(first_layer),
        "neuron_effects": attributions(shape),
    }
    return ask("unit_mediation_interventions", given, **{"single_units": True, **settings})


def subject() -> Tables:
    """Random runs of every unit; in them, two undefined effects of neuron 1 on arithmetic in words,
    where neuron 2 has none that is defined.
    """
    table, pairs = patched(architecture(), 2), unit_pairs(4, 5)
    random = np.random.default_rng(4)
    rows = table.select("intervention").join(pairs.select("pair"), how="cross")
    values = random.uniform(0.05, 1, (4, len(rows))).astype(np.float32)
    runs = rows.hstack(pl.DataFrame(values, schema=[*LOGITS, *PROBABILITIES], orient="col"))
    first = pairs.filter(question="arithmetic_words")["pair"].to_list()
    lost = (pl.col("intervention") == 2) & pl.col("pair").is_in(first[:2]) | (
        pl.col("intervention") == 3
    ) & pl.col("pair").is_in(first)
    runs = runs.with_columns(
        answer_probability=pl.when(lost).then(0).otherwise("answer_probability").cast(pl.Float32)
    )
    runs = runs.sample(fraction=1, shuffle=True, seed=1)
    return {"unit_mediation_pairs": pairs, "unit_mediation_interventions": table, "runs": runs}
