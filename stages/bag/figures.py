"""Draws the causal tests: heuristics, prompts and neurons knocked out, the bag alone, and what cells that fail have of it.

Fig. 7 of the study is about neurons of one heuristic, Fig. 8 about those of one prompt, Fig. 9 about cells that fail. Called and scored
neurons, and neurons set to 0 and to their mean, have figures of their own. A panel without data says why.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stages.bag import failure_figures, why
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import GREEN, ORANGE, OTHERS, OWN, SKY, Axes, Figure, Tables

TABLES = [
    "circuit/pairs_found.parquet", "circuit/late_layers.parquet", "circuit/probes.parquet",
    "heuristics/heuristic_neurons.parquet", "heuristics/label_limits.parquet",
    "bag/knockouts_by_heuristic.parquet", "bag/knockout_tests.parquet", "bag/knockouts_by_prompt.parquet",
    "bag/knockouts_by_neuron.parquet", "bag/bag_alone.parquet",
    "bag/failures.parquet", "bag/failure_tests.parquet", "bag/failure_inputs.parquet",
]  # fmt: skip
SIDES = {"control": (OTHERS, "x"), "heuristic": (OWN, "o")}  # arms of knockouts_by_heuristic
ARMS = {  # of knockouts_by_prompt -> label, colour, line
    "heuristic": ("best of its heuristics", OWN, "-"), "count": ("most of its heuristics", ORANGE, "-"),
    "matched": ("others of equal effect", GREEN, (0, (2, 4))), "control": ("other heuristics", OTHERS, (2, (2, 4))),
    "contaminated": ("others or its own", SKY, (4, (2, 4))),
}  # fmt: skip  # dashes fill one another's gaps where lines coincide
KEPT = {"heuristic": ("heuristic neurons", OWN), "random": ("as many random ones", "#999999"), "rest": ("the rest", OTHERS)}
ENDS = {"nothing": -1, "everything": 1}  # of bag_alone, left and right of the memberships
MEMBERSHIPS = ["label", "called", "scored"]
BINS = 20  # of p-values: the first holds those up to 0.05
LAYERS = 8  # in knockouts_by_neuron, evenly spread
SILENCE = {"zero": "0", "mean": "their mean"}


def main(subject: str) -> None:
    drawing.write(FIGURES, Path("reports") / subject / "bag/figures", drawing.tables(subject, TABLES), subject, front="bag_alone")


def knockouts_by_heuristic(tables: Tables, subject: str, membership: str = "called") -> Figure:
    """Each heuristic on the prompts it is about (up) against others (right): its own suffer more below the diagonal.

    Dashed: what the most frequent answer reaches on either kind of prompts, mean over heuristics.
    """
    title = f"{subject}: {membership} neurons of a heuristic set to 0, or others (control); written: means of associated / other prompts"
    figure, axes, columns = drawing.operator_panels(2, tables["pairs_found"], title, (2.2, 2.2))
    for operator, column, _ in columns:
        which = {"operator": operator, "membership": membership, "ablation": "zero"}
        rows, tests = (tables[name].filter(**which) for name in ("knockouts_by_heuristic", "knockout_tests"))
        for axis, measure, prefix in zip(column, ("accuracy", "logit"), ("accuracy", "logit_change"), strict=True):
            _dissociation(axis, rows, prefix)
            if measure == "accuracy":
                drawing.majority(axis, rows["majority_accuracy_associated"])
                drawing.majority(axis, rows["majority_accuracy_other"], vertical=True)
            axis.set_title("\n".join([operator, *_tested(tests.filter(measure=measure))]), fontsize=8)
            if rows.drop_nulls([f"{prefix}_associated", f"{prefix}_other"]).is_empty():
                no_prompts = "no prompt, or every one, is about such a heuristic"
                drawing.absent(
                    axis,
                    why.no_heuristic(
                        tables,
                        operator,
                        membership,
                    )
                    if rows.is_empty()
                    else no_prompts,
                )
        column[0].set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="accuracy, other prompts")
        ends = [*column[1].get_xlim(), *column[1].get_ylim()]
        column[1].set(xlim=(min(ends), max(ends)), ylim=(min(ends), max(ends)), xlabel="logit change, other prompts")
    axes[0, 0].set_ylabel("accuracy,\nassociated prompts")
    axes[1, 0].set_ylabel("answer's logit change,\nassociated prompts")
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
    axis.axline((0, 0), slope=1, color=drawing.GUIDE, linewidth=0.8, linestyle="--", label="equal")
    for arm, (colour, marker) in SIDES.items():
        dots = rows.filter(arm=arm).drop_nulls([f"{measure}_associated", f"{measure}_other"])
        xs, ys = dots[f"{measure}_other"], dots[f"{measure}_associated"]
        axis.plot(xs, ys, marker, markersize=3.5, alpha=0.7, color=colour, label=arm, markerfacecolor="none")
        if measure == "accuracy":  # the other has no intervals
            axis.hlines(ys, dots["other_low"], dots["other_high"], color=colour, linewidth=0.5, alpha=0.5)
            axis.vlines(xs, dots["associated_low"], dots["associated_high"], color=colour, linewidth=0.5, alpha=0.5)


def knockouts_by_prompt(tables: Tables, subject: str, ablation: str = "zero") -> Figure:
    """Accuracy against the neurons that were silenced, which are fewer than asked for where an arm has no more."""
    table = tables["knockouts_by_prompt"].filter(ablation=ablation).sort("neurons_per_layer")
    asked = ", ".join(map(str, table.filter(pl.col("neurons_per_layer") > 0)["neurons_per_layer"].unique().sort()))
    title = f"{subject}: for each prompt, up to {asked or 'no'} neurons of each late layer set to {SILENCE[ablation]}; which: see below"
    figure, axes, columns = drawing.operator_panels(2, tables["pairs_found"], title, sharex=True, sharey=True)
    for operator, column, _ in columns:
        for axis, membership in zip(column, ("called", "scored"), strict=True):
            rows = table.filter(operator=operator, membership=membership)
            for place, (arm, (label, colour, dashes)) in enumerate(ARMS.items()):
                line = rows.filter(arm=arm)
                band, style = (line["ci_low"], line["ci_high"]), {"linestyle": dashes, "zorder": 3 - 0.1 * place}
                drawing.curve(axis, line["neurons"], line["accuracy"], label, colour, band=band, **style)
            drawing.majority(axis, rows["majority_accuracy"])
            if rows.is_empty():
                drawing.absent(axis, why.no_late_neuron(tables, operator, membership))
        column[1].set_xlabel("neurons silenced, mean")
    most = max(table["neurons"], default=1) or 1
    smallest = min(table.filter(pl.col("neurons") > 0)["neurons"], default=1)
    ticks = [0, *(tick for tens in (1, 10, 100, 1000) for tick in (tens, 3 * tens) if smallest <= tick <= 1.1 * most)]
    axes[0, 0].set_xscale("symlog", linthresh=smallest, linscale=0.5)
    axes[0, 0].set(xlim=(-0.2 * smallest, 1.1 * most), ylim=(-0.03, 1.05), ylabel="accuracy,\ncalled neurons")
    axes[0, 0].set_xticks(ticks, ticks)
    axes[0, 0].minorticks_off()
    axes[1, 0].set_ylabel("accuracy,\nscored neurons")
    drawing.legend(figure, len(columns))
    return figure


def knockouts_by_neuron(tables: Tables, subject: str) -> Figure:
    """P-values of single neurons: of as many neurons as chance has it, one in 20 is in each bin."""
    table = tables["knockouts_by_neuron"].filter(pl.col("null_neurons") >= BINS - 1, ablation="zero")  # fewer reach no p of 0.05
    shown = drawing.evenly(sorted({*table["layer"]}) or [0], LAYERS)
    title = (
        f"{subject}: one neuron set to 0: does it hurt the prompts of its heuristic more than neurons of others do? "
        f"Written: neurons with p up to {1 / BINS:g}, of how many, each once for every heuristic"
    )
    figure, axes, columns = drawing.operator_panels(len(shown), tables["pairs_found"], title, (2.2, 1.5), sharex=True, sharey=True)
    for operator, column, _ in columns:
        for axis, layer in zip(column, shown, strict=True):
            part = table.filter(operator=operator, layer=layer)
            called = pl.col("membership") != "scored"
            said = _p_values(axis, part.filter(called), "called", OWN, fill=True, alpha=0.6)
            said += _p_values(axis, part.filter(~called), "only scored", "black", linewidth=1)
            axis.axhline(1 / BINS, color=drawing.GUIDE, linewidth=0.8, linestyle="--", label=f"chance, {1 / BINS:.0%}")
            axis.text(0.97, 0.97, said, transform=axis.transAxes, ha="right", va="top", fontsize=7)
            if part.is_empty():
                drawing.absent(axis, why.no_neuron(tables, operator, layer, BINS - 1))
        column[-1].set_xlabel("p-value")
    for axis, layer in zip(axes[:, 0], shown, strict=True):
        axis.set_ylabel(f"layer {layer}\nshare of pairs")
    drawing.legend(figure)
    return figure


def _p_values(axis: Axes, part: pl.DataFrame, name: str, colour: str, **style: Any) -> str:
    """Draws their distribution, each bin with its upper edge; what to write of it."""
    if part.is_empty():
        return ""
    bins = np.ceil((part["p_value"].to_numpy() * BINS).round(9)).astype(int) - 1
    share = np.bincount(bins, minlength=BINS) / part.height
    axis.stairs(share, np.linspace(0, 1, BINS + 1), color=colour, label=f"neurons {name}", **style)
    return f"{name}: {share[0]:.0%} of {part.height}\n"


def bag_alone(tables: Tables, subject: str) -> Figure:
    """Bars: accuracy with only some late neurons kept, how many written above, by what counts as a heuristic's neuron."""
    title = f"{subject}: accuracy with only some neurons of the late layers kept, whose number is written"
    figure, axes, columns = drawing.operator_panels(2, tables["pairs_found"], title, (2.4, 1.7), sharex=True, sharey=True)
    for operator, column, _ in columns:
        for axis, ablation in zip(column, ("mean", "zero"), strict=True):
            rows = tables["bag_alone"].filter(operator=operator, ablation=ablation)
            for place, (kept, (label, colour)) in enumerate(KEPT.items()):
                part = rows.filter(kept=kept)
                xs = [MEMBERSHIPS.index(membership) + 0.28 * (place - 1) for membership in part["membership"]]
                _bars(axis, xs, part, colour, label)
            part = rows.filter(pl.col("kept").is_in(list(ENDS)))
            _bars(axis, [1 + 2 * ENDS[kept] for kept in part["kept"]], part, "#333333", "_ends")
            drawing.majority(axis, rows["majority_accuracy"])
            if rows.is_empty():
                drawing.absent(axis, why.no_late_layer(tables, operator))
    axes[0, 0].set(xlim=(-1.5, 3.5), ylim=(0, 1.45), ylabel="accuracy,\nothers at their mean", yticks=[0, 0.25, 0.5, 0.75, 1])
    axes[0, 0].set_xticks([-1, 0, 1, 2, 3], ["none", *MEMBERSHIPS, "all"])
    axes[1, 0].set_ylabel("accuracy,\nothers at 0")
    drawing.legend(figure)
    return figure


def _bars(axis: Axes, xs: list[float], part: pl.DataFrame, colour: str, label: str) -> None:
    if xs:
        axis.set_axisbelow(True)
        axis.bar(xs, part["accuracy"], 0.26, color=colour, label=label)
        axis.vlines(xs, part["ci_low"], part["ci_high"], color="black", linewidth=0.8)
    for x, height, neurons in zip(xs, part["ci_high"], part["neurons"], strict=True):
        axis.text(x, height + 0.04, neurons, rotation=90, ha="center", va="bottom", fontsize=7)


FIGURES: dict[str, Callable[[Tables, str], Figure]] = {
    "knockouts_by_heuristic": knockouts_by_heuristic,
    "knockouts_by_heuristic_scored": partial(knockouts_by_heuristic, membership="scored"),
    "knockouts_by_prompt": knockouts_by_prompt, "knockouts_by_prompt_mean": partial(knockouts_by_prompt, ablation="mean"),
    "knockouts_by_neuron": knockouts_by_neuron, "bag_alone": bag_alone,
    "failures": failure_figures.failures, "failures_scored": partial(failure_figures.failures, membership="scored"),
    "failure_inputs": failure_figures.failure_inputs,
}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1])
