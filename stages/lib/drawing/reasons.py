"""Say why a figure has nothing to draw, if several chapters share the reason."""

import polars as pl


def no_late_layer(probes: pl.DataFrame) -> str:
    """Return why no layer is late. probes: the table probes."""
    last = probes.filter(position="last").drop_nulls("accuracy")
    if last.is_empty():
        return "no layer is late: too few prompts are answered correctly for a probe"
    best = last.sort("accuracy", "layer").row(-1, named=True)
    why = f"no layer is late: the best probe has accuracy {best['accuracy']:.2f}"
    if best["majority_accuracy"] is None:
        return why
    return f"{why}, the most frequent answer {best['majority_accuracy']:.2f}"


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
