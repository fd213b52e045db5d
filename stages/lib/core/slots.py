"""Assign the tokens of prompts of unequal length to slots: those of the longest prompt.

The last tokens of an operand share a slot in all prompts, and so do the tokens before them. An
operand of fewer tokens than the longest leaves slots before its first token empty. Every other
token keeps its distance from its neighbours. If all operands have one token, slots are positions.
"""

from collections.abc import Mapping

import numpy as np

OPERANDS = ("op1", "op2")


def first_of(operand: str) -> str:
    """Return the role of an operand's first token. The last token's role is the operand's name."""
    return f"{operand}_first"


def attributes(widths: Mapping[str, int] | None) -> dict[str, str]:
    """Return attributes of means.h5 with the tokens of the longest operands; none if all are 1."""
    return {f"{operand}_tokens": str(width) for operand, width in (widths or {}).items()}


def widths(attributes: Mapping[str, str]) -> dict[str, int] | None:
    """Return the tokens of the longest operands from these attributes, None if they have none."""
    known = {}
    for operand in OPERANDS:
        name = f"{operand}_tokens"
        if name in attributes:
            known[operand] = int(attributes[name])
    return known or None


def slots(
    length: int,
    positions: Mapping[str, np.ndarray],
    widths: Mapping[str, int],
) -> np.ndarray:
    """Return the slot of each token, (prompts, length), of prompts of one length.

    positions: role -> (prompts,) token position, with the first and last token of each operand.
    widths: operand -> tokens of the longest one.
    """
    places = np.arange(length)[None]
    result = np.tile(places, (len(positions[OPERANDS[0]]), 1))
    for operand in OPERANDS:
        first, last = positions[first_of(operand)], positions[operand]
        missing = widths[operand] - (last - first + 1)  # tokens, (prompts,)
        result += (places >= first[:, None]) * missing[:, None]
    return result
