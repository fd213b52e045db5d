"""Say why a figure has nothing to draw, if several chapters share the reason."""

import polars as pl


def no_late_layer(probes: pl.DataFrame, least_plateau: float, readable: float) -> str:
    """Return why no layer is late, as late_layers.sql decides.

    probes: the table probes; least_plateau, readable: settings of the section late_layers, 0 to 1.
    """
    none, measures = "no layer is late", ["accuracy", "shuffled_accuracy", "majority_accuracy"]
    last = probes.filter(position="last").drop_nulls(measures)
    if last.is_empty():
        return f"{none}: too few prompts are answered correctly for a probe"
    gain = (pl.col("accuracy") - pl.col("baseline")) / (1 - pl.col("baseline"))
    last = last.with_columns(baseline=pl.max_horizontal(measures[1:]))
    last = last.with_columns(gain=pl.when(pl.col("baseline") < 1).then(gain).otherwise(0.0))
    last = last.with_columns(plateau=pl.max("gain").over("operator"))
    counted = last.filter(pl.col("plateau") >= least_plateau)
    if counted.is_empty():
        best = last.sort("gain", "operator", "layer").row(-1, named=True)
        needed = best["baseline"] + least_plateau * (1 - best["baseline"])
        return (
            f"{none}: the best probe has accuracy {best['accuracy']:.2f}, at least {needed:.2f} is "
            f"needed (baseline {best['baseline']:.2f})"
        )
    after = counted.filter(pl.col("layer") == last["layer"].max())
    share = (after["gain"] / after["plateau"]).to_numpy().mean()
    return (
        f"{none}: after the last layer, probes reach {share:.2f} of their best layer's accuracy "
        f"above the baseline, at least {readable:.2f} is needed"
    )


def too_few_draws(limits: pl.DataFrame, operator: str) -> str:
    """Return why permutation tests could give no label; empty if they could.

    limits: the table label_limits.
    """
    for row in limits.filter(operator=operator, too_few_draws=True).iter_rows(named=True):
        return (
            f"no label is possible with {row['draws']:,} draws: at least {row['needed']:,} neurons "
            f"at the floor are needed, {row['at_floor']:,} are"
        )
    return ""


def no_labels(limits: pl.DataFrame, operator: str, threshold: float | None) -> str:
    """Return why no neuron of an operator has a label.

    limits: the table label_limits; threshold: of the chance-corrected score, None if the
    calibration gave none.
    """
    if threshold is None:
        return "the calibration found no threshold for labels"
    why = too_few_draws(limits, operator)
    if why:
        return why
    for row in limits.filter(operator=operator).iter_rows(named=True):
        if row["controlled"]:
            strong = f"a strong match with a score of {threshold:g}"
            return f"none of {row['controlled']:,} neurons beyond chance has {strong}"
        return f"none of {row['neurons']:,} neurons has a heuristic beyond chance"
    return "no neuron was tested"
