"""Explain why a figure of neurons has nothing to draw, by the first reason that applies."""

import polars as pl

from stages.circuit.settings import LateLayers
from stages.lib.core.settings import load
from stages.lib.drawing import drawing, reasons
from stages.lib.drawing.drawing import Tables


def no_effect(tables: Tables, operator: str) -> str:
    """Return why no neuron has an effect above 0 on an operator's prompts."""
    if _patched(tables, operator=operator).is_empty():
        return drawing.operators(tables["pairs_found"])[operator]
    return "no neuron has an effect above 0"


def no_k(tables: Tables, operator: str) -> str:
    """Return why an operator has no top neurons to compare."""
    patched = _patched(tables, operator=operator)
    if patched.is_empty():
        return drawing.operators(tables["pairs_found"])[operator]
    return _too_few(patched)


def no_overlap(tables: Tables, position: str) -> str:
    """Return why there is no overlap of top neurons at a position, last for late layers."""
    patched = _patched(tables, position=position)
    if patched["operator"].n_unique() >= 2:
        return _too_few(patched)
    if position == "last" and tables["late_layers"]["first_layer"].null_count():
        return no_late_layer(tables)
    return "fewer than two operators have effects"


def no_late_layer(tables: Tables) -> str:
    """Return why no layer is late."""
    settings = load(LateLayers)
    return reasons.no_late_layer(tables["probes"], settings.least_plateau, settings.readable)


def _patched(tables: Tables, **which: str) -> pl.DataFrame:
    return tables["neuron_effects"].filter(method="exact", **which)


def _too_few(patched: pl.DataFrame) -> str:
    counts = patched.group_by("operator", "layer", "position").agg(pl.n_unique("neuron"))["neuron"]
    return f"{counts.to_numpy().max()} neurons a layer were patched: too few for the smallest k"
