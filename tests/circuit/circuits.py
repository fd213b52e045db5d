"""Made circuits of heads, and what brute force says of a circuit's answers."""

import numpy as np
import polars as pl

from tests.made import HEADS, LAYERS, NL

MEASURES = ["faithfulness", "mean_of_ratios", "ci_low", "ci_high", "accuracy", "prompts"]
KEYS = ["operator", "circuit", "heads", "neurons_per_layer", "seed"]


def heads(kept: dict[str, list[tuple[int, int]]]) -> pl.DataFrame:
    rows = [(o, layer, head) for o, pairs in kept.items() for layer, head in pairs]
    return pl.DataFrame(
        rows, schema={"operator": pl.String, "layer": pl.Int16, "head": pl.Int16}, orient="row"
    )


ALL_HEADS = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
KEPT = {"add": [(0, 1), (2, 0)], "subtract": ALL_HEADS}


def left_out(patches: pl.DataFrame, component: str) -> set[tuple]:
    """(layer, unit, position) of what is ablated; unit None: all of the layer."""
    rows = patches.filter(component=component).select("layer", "units", "position").rows()
    return {
        (layer, unit, position)
        for layer, units, position in rows
        for unit in ([None] if units is None else units)
    }


def nl_of(runs: pl.DataFrame, interventions: pl.DataFrame, **keys: object) -> pl.DataFrame:
    """The prompts of one circuit, with their NL."""
    [number] = interventions.filter(*(pl.col(c).eq_missing(v) for c, v in keys.items()))[
        "intervention"
    ].unique()
    answers = (
        runs.filter(intervention=number).sort("pair").with_columns(pl.col(pl.Float32).cast(float))
    )
    return answers.with_columns(nl=NL)


def by_brute_force(
    row: dict, runs: pl.DataFrame, interventions: pl.DataFrame, weights: pl.DataFrame
) -> list[float]:
    """MEASURES of the circuit that this row is about; intervals at a confidence of 0.9."""
    mine = nl_of(
        runs, interventions, **{c: row[c] for c in KEYS if c in row and c in interventions.columns}
    )
    least, most = (
        nl_of(runs, interventions, operator=row["operator"], circuit=c)["nl"].to_numpy()
        for c in ("nothing", "everything")
    )
    gained, whole = mine["nl"].to_numpy() - least, most - least
    drawn = weights.filter(operator=row["operator"], split="evaluation")["weights"].to_list()
    ratios = [gained @ np.array(w) / (whole @ np.array(w)) for w in drawn]
    means = [gained.mean() / whole.mean(), (gained / whole).mean()]
    return [*means, *np.quantile(ratios, [0.05, 0.95]), mine["correct"].mean(), 8]


def ends_are_ends(table: pl.DataFrame) -> None:
    """Assert that everything restores all of the answer, and nothing none, on every resampling."""
    ends = table.filter(pl.col("circuit").is_in(["everything", "nothing"]))
    assert (
        ends["faithfulness"].to_list()
        == ends["mean_of_ratios"].to_list()
        == ends["ci_low"].to_list()
    )
    assert set(ends.select("circuit", "faithfulness").rows()) == {
        ("everything", 1.0),
        ("nothing", 0.0),
    }
