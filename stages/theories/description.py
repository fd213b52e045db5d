"""Count the bits that describe which terms a theory uses, and with which coefficients.

Coefficients have the precision that maximum likelihood deserves, log2(n) / 2 bits for n samples
(Rissanen 1978, Modeling by shortest data description, Automatica 14). Numbers without an upper
bound have Rissanen's universal code (1983, A universal prior for integers and estimation by minimum
description length, Annals of Statistics 11).
"""

from math import comb, log2

NORMALISING = 2.865064  # Rissanen 1983; with it, all integers together are a code


def subset(choices: int, terms: int) -> float:
    """Return the bits that name a subset of this many terms of a dictionary."""
    return log2(comb(choices, min(choices, terms)))


def coefficients(terms: int, samples: int) -> float:
    """Return the bits of this many coefficients, which were fitted to so many samples."""
    return terms * log2(max(1, samples)) / 2


def integer(number: int) -> float:
    """Return the bits of an integer of at least 1: log2(n) + log2(log2(n)) + … + a constant."""
    bits, remaining = log2(NORMALISING), log2(number)
    while remaining > 0:
        bits += remaining
        remaining = log2(remaining)
    return bits


def varying(choices: int, terms: int, samples: int) -> float:
    """Return the bits of a neuron's terms, and of their number, which differs between neurons."""
    return integer(terms + 1) + subset(choices, terms) + coefficients(terms, samples)
