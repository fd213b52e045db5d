"""Link the rows of a table to the view about their neuron or cell."""

from collections.abc import Mapping
from typing import Any

import polars as pl
from dash import dcc

from stages.explorer.parts import Link, Part
from stages.explorer.question import Question


def to_neuron(subject: str, operator: str) -> dict[str, Link]:
    """Return the links of rows with layer and neuron.

    subject, operator: where a row has no such column.
    """

    def href(row: dict[str, Any]) -> str:
        keys = {
            "subject": row.get("subject") or subject,
            "operator": row.get("operator") or operator,
            "layer": row["layer"],
            "neuron": row["neuron"],
        }
        return "/neuron" + Question(keys).search()

    return {"neuron": href}


def to_prompt(subject: str, symbols: Mapping[str, str], operator: str) -> dict[str, Link]:
    """Return the links of rows with op1 and op2.

    subject, operator: where a row has no such column; symbols: operator -> its symbol.
    """

    def href(row: dict[str, Any]) -> str:
        sign = symbols.get(row.get("operator") or operator, "+")
        prompt = f"{row['op1']}{sign}{row['op2']}"
        keys = {"subject": row.get("subject") or subject, "prompt": prompt}
        return "/prompt" + Question(keys).search()

    return {"op1": href, "op2": href}


def to_ablation(subject: str, prompt: str, neurons: pl.DataFrame) -> Part:
    """Return a link to the ablation of these neurons on a prompt."""
    listed = ", ".join(f"{layer}:{neuron}" for layer, neuron in neurons["layer", "neuron"].rows())
    keys = {"subject": subject, "prompt": prompt, "neurons": listed}
    text = f"Ablate the first {neurons.height} of them and see the new prediction"
    return dcc.Link(text, href="/silence" + Question(keys).search())
