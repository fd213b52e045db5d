"""Why a figure of the causal tests has nothing to draw: the first reason that applies."""

import polars as pl

from stages.circuit.settings import LateLayers
from stages.lib.core.settings import load
from stages.lib.drawing import drawing, reasons
from stages.lib.drawing.drawing import Tables

WORDS = {  # criterion -> what is true of its neurons
    "label": "has a label",
    "fdr": "has a heuristic beyond chance",
    "threshold": "has a score that reaches the threshold",
}


def no_late_layer(tables: Tables, operator: str) -> str:
    """Return why there are no late neurons to keep or ablate on an operator's prompts."""
    return no_pairs(tables, operator) or _not_late(tables) or drawing.NO_ROWS


def no_late_neuron(tables: Tables, operator: str, criterion: str) -> str:
    """Return why no late neuron of a prompt's heuristics was ablated."""
    return no_pairs(tables, operator) or no_associated(tables, operator, criterion)


def no_associated(tables: Tables, operator: str, criterion: str) -> str:
    """Return why no late neuron has a heuristic that some cell satisfies."""
    late = _no_member(tables, operator, criterion, "late neuron", pl.col("late"))
    return _not_late(tables) or late or "no cell satisfies a heuristic of a late neuron"


def no_heuristic(tables: Tables, operator: str, criterion: str) -> str:
    """Return why no heuristic was ablated."""
    none = no_pairs(tables, operator)
    none = none or _no_member(tables, operator, criterion, "neuron", pl.lit(True))
    if none:
        return none
    neurons = tables["heuristic_neurons"].filter(operator=operator, criterion=criterion)
    most = neurons.group_by("heuristic").agg(pl.sum("neurons"))["neurons"].to_numpy().max()
    return f"no heuristic has enough neurons to be ablated: at most {most}"


def no_neuron(tables: Tables, operator: str, layer: int, fewest: int) -> str:
    """Return why no neuron of a layer was compared with at least `fewest` others."""
    table = tables["knockouts_by_neuron"]
    if table.is_empty() and _not_late(tables):  # only late neurons are ablated alone
        return no_pairs(tables, operator) or _not_late(tables)
    in_layer = pl.col("layer") == layer
    what = f"neuron of layer {layer}"
    none = no_pairs(tables, operator) or _no_member(tables, operator, "threshold", what, in_layer)
    if none:
        return none
    rows = table.filter(in_layer, operator=operator, ablation="zero")
    most = max(rows["null_neurons"], default=0)
    what = f"fewer than {fewest} neurons of other heuristics to compare with in layer {layer}"
    return f"{what}: at most {most}"


def no_pairs(tables: Tables, operator: str) -> str:
    """Return why an operator has no prompts; empty if it has some."""
    problem = drawing.operators(tables["pairs_found"])[operator]
    return "" if problem == drawing.NO_ROWS else problem


def _not_late(tables: Tables) -> str:
    """Return why no layer is late; empty if one is."""
    if tables["late_layers"]["first_layer"].null_count():
        settings = load(LateLayers)
        least_plateau, readable = settings.least_plateau, settings.readable
        return reasons.no_late_layer(tables["probes"], least_plateau, readable)
    return ""


def _no_member(tables: Tables, operator: str, criterion: str, what: str, which: pl.Expr) -> str:
    """Return why none of these neurons has a heuristic; empty if one does."""
    if tables["heuristic_neurons"].filter(which, operator=operator, criterion=criterion).height:
        return ""
    few = ""
    if criterion != "threshold":
        few = reasons.too_few_draws(tables["label_limits"], operator)
    return few or f"no {what} {WORDS[criterion]}"
