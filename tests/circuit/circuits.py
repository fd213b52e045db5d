"""Made circuits of heads, and what brute force says of a circuit's answers."""

from itertools import product

import numpy as np
import polars as pl

from tests.made import HEADS, LAYERS, NL

MEASURES = ["faithfulness", "mean_of_ratios", "ci_low", "ci_high", "accuracy", "prompts"]
KEYS = ["operator", "circuit", "heads", "neurons_per_layer", "seed"]


def heads(kept: dict[str, list[tuple[int, int]]]) -> pl.DataFrame:
    schema = {"operator": pl.String, "layer": pl.Int16, "head": pl.Int16}
    rows = []
    for operator, pairs in kept.items():
        for layer, head in pairs:
            rows.append((operator, layer, head))
    return pl.DataFrame(rows, schema=schema, orient="row")


ALL_HEADS = list(product(range(LAYERS), range(HEADS)))
KEPT = {"add": [(0, 1), (2, 0)], "subtract": ALL_HEADS}


def left_out(patches: pl.DataFrame, component: str) -> set[tuple]:
    """(layer, unit, position) of what is ablated; unit None: all of the layer."""
    units = patches.filter(component=component).explode("units", empty_as_null=False)
    return set(units.select("layer", "units", "position").rows())


def nl_of(runs: pl.DataFrame, interventions: pl.DataFrame, **keys: object) -> pl.DataFrame:
    """The prompts of one circuit, with their NL."""
    for column, value in keys.items():
        interventions = interventions.filter(pl.col(column).eq_missing(value))
    [number] = interventions["intervention"].unique()
    answers = runs.filter(intervention=number).sort("pair")
    return answers.with_columns(pl.col(pl.Float32).cast(float)).with_columns(nl=NL)


def by_brute_force(
    row: dict, runs: pl.DataFrame, interventions: pl.DataFrame, weights: pl.DataFrame
) -> list[float]:
    """MEASURES of the circuit that this row is about; intervals at a confidence of 0.9."""
    keys = {key: row[key] for key in KEYS if key in row and key in interventions.columns}
    mine = nl_of(runs, interventions, **keys)
    least = nl_of(runs, interventions, operator=row["operator"], circuit="nothing")
    most = nl_of(runs, interventions, operator=row["operator"], circuit="everything")
    gained = (mine["nl"] - least["nl"]).to_numpy()
    whole = (most["nl"] - least["nl"]).to_numpy()
    drawn = np.stack(weights.filter(operator=row["operator"], split="evaluation")["weights"])
    ratios = (drawn @ gained) / (drawn @ whole)
    means = [gained.mean() / whole.mean(), (gained / whole).mean()]
    return [*means, *np.quantile(ratios, [0.05, 0.95]), mine["correct"].mean(), 8]


def ends_are_ends(table: pl.DataFrame) -> None:
    """Assert that everything restores all of the answer, and nothing none, on every resampling."""
    ends = table.filter(pl.col("circuit").is_in(["everything", "nothing"]))
    faithfulness = ends["faithfulness"].to_list()
    assert faithfulness == ends["mean_of_ratios"].to_list() == ends["ci_low"].to_list()
    assert set(ends.select("circuit", "faithfulness").rows()) == {
        ("everything", 1.0),
        ("nothing", 0.0),
    }
