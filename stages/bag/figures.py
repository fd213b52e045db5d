"""Draw the causal tests: ablations, the bag alone, steering, and failures.

Fig. 7 of the study is about the neurons of one heuristic, Fig. 8 about those of one prompt, and
Fig. 9 about cells that fail. Each criterion by which neurons have heuristics, and each ablation (0
or mean), has figures of its own. A panel without data says why.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.bag import failure_figures, steering_figure, why
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import GREEN, ORANGE, OTHERS, OWN, SKY, Axes, Figure, Tables
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files

TABLES = [
    "circuit/pairs_found.parquet",
    "circuit/late_layers.parquet",
    "circuit/probes.parquet",
    "heuristics/label_limits.parquet",
    "bag/knockouts_by_heuristic.parquet",
    "bag/knockout_tests.parquet",
    "bag/knockouts_by_prompt.parquet",
    "bag/knockouts_by_neuron.parquet",
    "bag/bag_alone.parquet",
    "bag/steering.parquet",
    "bag/failures.parquet",
    "bag/failure_tests.parquet",
    "bag/failure_inputs.parquet",
]
# Reasons need counts alone. The whole table of a model with many neurons exceeds the memory.
HEURISTIC_NEURONS = """
    select operator, criterion, layer, late, heuristic, count(*) as neurons
    from heuristic_neurons group by all order by all
"""
SIDES = {"control": (OTHERS, "x"), "heuristic": (OWN, "o")}  # arms of knockouts_by_heuristic
# arm of knockouts_by_prompt -> label, colour, line; dashes fill one another's gaps where lines
# coincide
ARMS = {
    "heuristic": ("best of its heuristics", OWN, "-"),
    "count": ("most of its heuristics", ORANGE, "-"),
    "matched": ("others of equal effect", GREEN, (0, (2, 4))),
    "control": ("other heuristics", OTHERS, (2, (2, 4))),
    "contaminated": ("others or its own", SKY, (4, (2, 4))),
}
# neurons that bag_alone keeps -> label, colour, distance of the bar from its criterion
KEPT = {
    "heuristic": ("heuristic neurons", OWN, -0.375),
    "matched": ("others of nearest variance", GREEN, -0.225),
    "random": ("as many random neurons", "#999999", -0.075),
    "rest": ("all but heuristic neurons", OTHERS, 0.075),
    "matched_rest": ("all but others of nearest variance", ORANGE, 0.225),
    "random_rest": ("all but as many random neurons", SKY, 0.375),
}
BAR = 0.14  # width
ENDS = {"nothing": -1, "everything": 1}  # of bag_alone, left and right of the criteria
CRITERIA = ["label", "fdr", "threshold"]
LEAST = -0.25  # smaller shares are drawn as this
# rows of bag_alone: columns of the value and its interval, ablation, name
ANSWERS, DIFFERENCE = (
    ("accuracy", "ci_low", "ci_high"),
    ("recovered", "recovered_low", "recovered_high"),
)
ALONE = [
    (ANSWERS, "mean", "accuracy,\nothers at their mean"),
    (ANSWERS, "zero", "accuracy,\nothers at 0"),
    (DIFFERENCE, "mean", f"logit difference\n(at least {LEAST}),\nothers at their mean"),
]
BINS = 20  # of p-values: the first holds those up to 0.05
LAYERS = 8  # in knockouts_by_neuron, evenly spread
REPLACEMENTS = {"zero": "0", "mean": "their mean"}
AXES = {"accuracy": "accuracy", "logit": "logit_change"}  # measure -> prefix of its columns


def main(subject: str) -> None:
    folder = Path("reports") / subject / "bag/figures"
    drawing.write(FIGURES, folder, read(subject), subject, front="bag_alone")


def read(subject: str) -> Tables:
    """Read a model's tables; heuristic_neurons has the number of neurons of each heuristic."""
    files = subject_files(subject, ["heuristic_neurons"])
    neurons = Database(files, threads=1).sql(HEURISTIC_NEURONS).pl()
    return drawing.tables(subject, TABLES) | {"heuristic_neurons": neurons}


def knockouts_by_heuristic(tables: Tables, subject: str, criterion: str = "fdr") -> Figure:
    """Draw the effect of each ablation on associated prompts (up) against other prompts (right).

    Below the diagonal, associated prompts suffer more. Dashed is the accuracy of always predicting
    the most frequent answer of either kind of prompts, mean over heuristics.
    """
    title = (
        f"{subject}: each heuristic's neurons ({criterion}) set to 0, or others (control); "
        "written: means of associated / other prompts"
    )
    pairs_found = tables["pairs_found"]
    figure, axes, columns = drawing.operator_panels(2, pairs_found, title, (2.2, 2.2))
    for operator, column, _ in columns:
        filters = {"operator": operator, "criterion": criterion, "ablation": "zero"}
        rows = tables["knockouts_by_heuristic"].filter(**filters)
        tests = tables["knockout_tests"].filter(**filters)
        reason = "the heuristics hold for no prompt, or for every prompt"
        if rows.is_empty():
            reason = why.no_heuristic(tables, operator, criterion)
        for axis, (measure, prefix) in zip(column, AXES.items(), strict=True):
            _dissociation(axis, rows, prefix)
            lines = [operator, *_tested(tests.filter(measure=measure))]
            axis.set_title("\n".join(lines), fontsize=8)
            if rows.drop_nulls([f"{prefix}_associated", f"{prefix}_other"]).is_empty():
                drawing.absent(axis, reason)
        accuracy, logit = column
        _intervals(accuracy, rows)
        drawing.majority(accuracy, rows["majority_accuracy_associated"])
        drawing.majority(accuracy, rows["majority_accuracy_other"], vertical=True)
        accuracy.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="accuracy, other prompts")
        ends = [*logit.get_xlim(), *logit.get_ylim()]
        limits = min(ends), max(ends)
        logit.set(xlim=limits, ylim=limits, xlabel="logit change, other prompts")
    axes[0, 0].set_ylabel("accuracy,\nassociated prompts")
    axes[1, 0].set_ylabel("change of the answer's logit,\nassociated prompts")
    drawing.legend(figure)
    return figure


def _tested(tests: pl.DataFrame) -> list[str]:
    """Return the text under a panel, from a row of knockout_tests; empty if there is no row."""
    lines = []
    for row in tests.iter_rows(named=True):
        own = f"{row['associated']:z.2f} / {row['other']:z.2f}"
        control = f"{row['control_associated']:z.2f} / {row['control_other']:z.2f}"
        test = "no test" if row["p_value"] is None else f"p = {row['p_value']:.2g}"
        lines.append(f"{row['heuristics']} heuristics: {own}\ncontrol: {control}, {test}")
    return lines


def _dissociation(axis: Axes, rows: pl.DataFrame, measure: str) -> None:
    """Draw a marker for each heuristic and each control, and the diagonal."""
    dashes: dict[str, Any] = {"color": drawing.GUIDE, "linewidth": 0.8, "linestyle": "--"}
    axis.axline((0, 0), slope=1, **dashes, label="equal")
    for arm, (colour, marker) in SIDES.items():
        style: dict[str, Any] = {
            "color": colour,
            "markersize": 3.5,
            "alpha": 0.7,
            "markerfacecolor": "none",
        }
        dots = rows.filter(arm=arm).drop_nulls([f"{measure}_associated", f"{measure}_other"])
        xs, ys = dots[f"{measure}_other"], dots[f"{measure}_associated"]
        axis.plot(xs, ys, marker, label=arm, **style)


def _intervals(axis: Axes, rows: pl.DataFrame) -> None:
    """Draw the intervals of both accuracies; changes of logits have none."""
    for arm, (colour, _) in SIDES.items():
        dots = rows.filter(arm=arm).drop_nulls(["accuracy_associated", "accuracy_other"])
        xs, ys = dots["accuracy_other"], dots["accuracy_associated"]
        style: dict[str, Any] = {"color": colour, "linewidth": 0.5, "alpha": 0.5}
        axis.hlines(ys, dots["other_low"], dots["other_high"], **style)
        axis.vlines(xs, dots["associated_low"], dots["associated_high"], **style)


def knockouts_by_prompt(tables: Tables, subject: str, ablation: str = "zero") -> Figure:
    """Draw accuracy against the mean number of ablated neurons, which may be fewer than planned."""
    table = tables["knockouts_by_prompt"].filter(ablation=ablation).sort("neurons_per_layer")
    planned = table["neurons_per_layer"].unique().sort()
    counts = ", ".join(map(str, planned.filter(planned > 0)))
    title = (
        f"{subject}: accuracy when, for each prompt, up to {counts or 'no'} neurons "
        f"of each late layer are set to {REPLACEMENTS[ablation]}; legend: which neurons"
    )
    pairs_found = tables["pairs_found"]
    figure, axes, columns = drawing.operator_panels(2, pairs_found, title, sharex=True, sharey=True)
    for operator, column, _ in columns:
        for axis, criterion in zip(column, ("fdr", "threshold"), strict=True):
            rows = table.filter(operator=operator, criterion=criterion)
            for order, (arm, (label, colour, dashes)) in enumerate(ARMS.items()):
                line = rows.filter(arm=arm)
                band = line["ci_low"], line["ci_high"]
                style: dict[str, Any] = {"linestyle": dashes, "zorder": 3 - 0.1 * order}
                xs, ys = line["neurons"], line["accuracy"]
                drawing.curve(axis, xs, ys, label, colour, band=band, **style)
            drawing.majority(axis, rows["majority_accuracy"])
            if rows.is_empty():
                drawing.absent(axis, why.no_late_neuron(tables, operator, criterion))
        column[1].set_xlabel("ablated neurons, mean")
    _logarithmic(axes[0, 0], table["neurons"])
    axes[0, 0].set(ylim=(-0.03, 1.05), ylabel="accuracy,\ncriterion: fdr")
    axes[1, 0].set_ylabel("accuracy,\ncriterion: threshold")
    drawing.legend(figure, len(columns))
    return figure


def _logarithmic(axis: Axes, neurons: pl.Series) -> None:
    """Give numbers of neurons a logarithmic axis on which 0 has a place, too."""
    most = max(neurons, default=1) or 1
    smallest = min(neurons.filter(neurons > 0), default=1)
    steps = np.outer([1, 10, 100, 1000], [1, 3]).ravel()
    shown = steps[(smallest <= steps) & (steps <= 1.1 * most)]
    ticks = [0, *shown.tolist()]
    axis.set_xscale("symlog", linthresh=smallest, linscale=0.5)
    axis.set_xlim(-0.2 * smallest, 1.1 * most)
    axis.set_xticks(ticks, ticks)
    axis.minorticks_off()


def knockouts_by_neuron(tables: Tables, subject: str) -> Figure:
    """Draw the p-values of ablations of single neurons; by chance, 1 in 20 is in each bin."""
    has_enough = pl.col("null_neurons") >= BINS - 1  # fewer cannot give a p-value of 0.05
    table = tables["knockouts_by_neuron"].filter(has_enough, ablation="zero")
    layers = drawing.evenly(sorted({*table["layer"]}) or [0], LAYERS)
    title = (
        f"{subject}: one neuron set to 0: are the prompts of its heuristic hurt more than by "
        f"neurons without it? Written: pairs of neuron and heuristic with p up to {1 / BINS:g}, "
        "of how many"
    )
    pairs_found = tables["pairs_found"]
    figure, axes, columns = drawing.operator_panels(
        len(layers), pairs_found, title, (2.2, 1.5), sharex=True, sharey=True
    )
    for operator, column, _ in columns:
        for axis, layer in zip(column, layers, strict=True):
            part = table.filter(operator=operator, layer=layer)
            is_fdr = pl.col("criterion") != "threshold"
            text = _p_values(axis, part.filter(is_fdr), "fdr", OWN, fill=True, alpha=0.6)
            text += _p_values(axis, part.filter(~is_fdr), "threshold only", "black", linewidth=1)
            dashes: dict[str, Any] = {"color": drawing.GUIDE, "linewidth": 0.8, "linestyle": "--"}
            axis.axhline(1 / BINS, **dashes, label=f"chance, {1 / BINS:.0%}")
            axis.text(0.97, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=7)
            if part.is_empty():
                drawing.absent(axis, why.no_neuron(tables, operator, layer, BINS - 1))
        column[-1].set_xlabel("p-value")
    for axis, layer in zip(axes[:, 0], layers, strict=True):
        axis.set_ylabel(f"layer {layer}\nshare of pairs")
    drawing.legend(figure)
    return figure


def _p_values(axis: Axes, part: pl.DataFrame, name: str, colour: str, **style: Any) -> str:
    """Draw the distribution of p-values; each bin holds its upper edge. Return what to write."""
    if part.is_empty():
        return ""
    bins = np.ceil((part["p_value"].to_numpy() * BINS).round(9)).astype(int) - 1
    share = np.bincount(bins, minlength=BINS) / part.height
    axis.stairs(share, np.linspace(0, 1, BINS + 1), color=colour, label=f"neurons {name}", **style)
    return f"{name}: {share[0]:.0%} of {part.height}\n"


def bag_alone(tables: Tables, subject: str) -> Figure:
    """Draw what remains with only some late neurons kept, as bars, by criterion.

    That is the accuracy, and the share of the logit difference between the answer and the
    counterfactual prompt's answer. The number of neurons with a heuristic is above each criterion's
    bars.
    """
    kept = "accuracy and share of the logit difference with only some neurons of the late layers"
    title = f"{subject}: {kept}; written: how many have a heuristic"
    figure, axes, columns = drawing.operator_panels(
        len(ALONE), tables["pairs_found"], title, (3.2, 1.6), sharex=True, sharey="row"
    )
    for operator, column, _ in columns:
        for axis, (values, ablation, _) in zip(column, ALONE, strict=True):
            rows = tables["bag_alone"].filter(operator=operator, ablation=ablation)
            rows = rows.drop_nulls(values[0])
            for kept, (label, colour, shift) in KEPT.items():
                part = rows.filter(kept=kept)
                places = [CRITERIA.index(criterion) for criterion in part["criterion"]]
                _bars(axis, [place + shift for place in places], part, values, colour, label)
                if kept == "heuristic":
                    _counts(axis, places, part)
            part = rows.filter(pl.col("kept").is_in(list(ENDS)))
            places = [1 + 2 * ENDS[kept] for kept in part["kept"]]
            _bars(axis, places, part, values, "#333333", "_ends")
            _counts(axis, places, part)
            if values == ANSWERS:
                drawing.majority(axis, rows["majority_accuracy"])
            if rows.is_empty():
                drawing.absent(axis, _why_alone(tables, operator))
    axes[0, 0].set_xlim(-1.5, 3.5)
    axes[0, 0].set_xticks([-1, 0, 1, 2, 3], ["none", *CRITERIA, "all"])
    for axis, (values, _, name) in zip(axes[:, 0], ALONE, strict=True):
        axis.set(ylim=(0 if values == ANSWERS else LEAST, 1.2), yticks=[0, 0.25, 0.5, 0.75, 1])
        axis.set_ylabel(name)
    drawing.legend(figure)
    return figure


def _why_alone(tables: Tables, operator: str) -> str:
    """Return why bag_alone has no row of an operator, or no share of the logit difference."""
    if tables["bag_alone"].filter(operator=operator).is_empty():
        return why.no_late_layer(tables, operator)
    return "without late neurons the logit difference is not clearly smaller"


def _bars(
    axis: Axes,
    xs: Sequence[float],
    part: pl.DataFrame,
    values: Sequence[str],
    colour: str,
    label: str,
) -> None:
    """Draw bars; values: columns of the value and of its interval's ends."""
    if xs:
        value, low, high = (part[column] for column in values)
        axis.set_axisbelow(True)
        axis.bar(xs, value.clip(LEAST), BAR, color=colour, label=label)
        axis.vlines(xs, low.clip(LEAST), high.clip(LEAST), color="black", linewidth=0.8)


def _counts(axis: Axes, places: Sequence[float], part: pl.DataFrame) -> None:
    """Write numbers of neurons above bars, with their intervals, which end at 1."""
    for x, neurons in zip(places, part["neurons"], strict=True):
        axis.text(x, 1.04, f"{neurons:,}", ha="center", va="bottom", fontsize=7)


FIGURES: dict[str, Callable[[Tables, str], Figure]] = {
    "knockouts_by_heuristic": knockouts_by_heuristic,
    "knockouts_by_heuristic_threshold": partial(knockouts_by_heuristic, criterion="threshold"),
    "knockouts_by_prompt": knockouts_by_prompt,
    "knockouts_by_prompt_mean": partial(knockouts_by_prompt, ablation="mean"),
    "knockouts_by_neuron": knockouts_by_neuron,
    "bag_alone": bag_alone,
    "steering": steering_figure.steering,
    "failures": failure_figures.failures,
    "failures_threshold": partial(failure_figures.failures, criterion="threshold"),
    "failure_inputs": failure_figures.failure_inputs,
}

if __name__ == "__main__":
    main(sys.argv[1])
