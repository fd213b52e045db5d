"""Where rows lead: from a neuron, a cell or a heuristic of a table to the view that is about it."""

from collections.abc import Mapping
from typing import Any

import polars as pl
from dash import dcc

from stages.explorer.parts import Link, Part
from stages.explorer.question import Question


def to_neuron(subject: str, operator: str) -> dict[str, Link]:
    """From rows with layer and neuron."""

    def href(row: dict[str, Any]) -> str:
        asked = {"subject": row.get("subject") or subject, "operator": row.get("operator") or operator}
        return "/neuron" + Question({**asked, "layer": row["layer"], "neuron": row["neuron"]}).search()

    return {"neuron": href}


def to_prompt(subject: str, symbols: Mapping[str, str], operator: str) -> dict[str, Link]:
    """From rows with op1 and op2."""

    def href(row: dict[str, Any]) -> str:
        sign = symbols.get(row.get("operator") or operator, "+")
        return "/prompt" + Question({"subject": row.get("subject") or subject, "prompt": f"{row['op1']}{sign}{row['op2']}"}).search()

    return {"op1": href, "op2": href}


def to_silence(subject: str, prompt: str, neurons: pl.DataFrame) -> Part:
    """To the silencing of these neurons on a prompt."""
    listed = ", ".join(f"{layer}:{neuron}" for layer, neuron in neurons.select("layer", "neuron").iter_rows())
    href = "/silence" + Question({"subject": subject, "prompt": prompt, "neurons": listed}).search()
    return dcc.Link(
        f"Ablate the first {neurons.height} of them and see the new prediction",
        href=href,
    )
