"""Where the tokens of prompts of unequal length belong: the slots of the longest prompt, to whose operands shorter ones are aligned.

Units stand over units: an operand of fewer tokens than the longest one leaves slots empty in front of its first token. Every other token
keeps its distance from its neighbours. Where all operands have one token, slots are positions.
"""

from collections.abc import Mapping

import numpy as np

OPERANDS = ("op1", "op2")


def first_of(operand: str) -> str:
    """The role of an operand's first token; the operand's own name is that of its last."""
    return f"{operand}_first"


def attributes(widths: Mapping[str, int] | None) -> dict[str, str]:
    """How means.h5 says how many tokens the longest operands have; nothing where all have one."""
    return {f"{operand}_tokens": str(width) for operand, width in (widths or {}).items()}


def widths(attributes: Mapping[str, str]) -> dict[str, int] | None:
    """What these attributes say."""
    known = {
        operand: attributes[name]
        for operand in OPERANDS
        if (name := f"{operand}_tokens") in attributes
    }
    return {operand: int(width) for operand, width in known.items()} or None


def slots(
    length: int, positions: Mapping[str, np.ndarray], widths: Mapping[str, int]
) -> np.ndarray:
    """The slot of each token, (prompts, length), of prompts of one length.

    positions: role -> (prompts,) token position, with the first and last token of each operand; widths: operand -> tokens of the longest.
    """
    places = np.arange(length)[None]
    found = np.tile(places, (len(positions[OPERANDS[0]]), 1))
    for operand in OPERANDS:
        first, last = positions[first_of(operand)], positions[operand]
        found += (places >= first[:, None]) * (widths[operand] - (last - first + 1))[:, None]
    return found
