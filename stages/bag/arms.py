"""Choose neurons of one layer to ablate for one prompt: those of its heuristics, or controls."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

ARMS = ("heuristic", "count", "control", "contaminated", "matched")


@dataclass(frozen=True)
class LayerHeuristics:
    """Hold the heuristics of one layer.

    number: the layer, from 0.
    heuristics: their names.
    scores: (heuristics, neurons) chance-corrected scores, 0 where a neuron lacks the heuristic.
    effects: (neurons,) effect of each neuron on the answer, NaN where it was not measured.
    """

    number: int
    heuristics: list[str]
    scores: np.ndarray
    effects: np.ndarray


def neurons_by_arm(
    layer: LayerHeuristics, associated: np.ndarray, most: int, seed: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Return at most `most` neurons for each arm, in order of preference.

    associated: bool (heuristics,), whether the prompt satisfies each heuristic.
    """
    rng = np.random.default_rng([*seed, layer.number])
    best = layer.scores[associated].max(axis=0, initial=0)
    counts = (layer.scores[associated] > 0).sum(axis=0)
    has_other = (layer.scores[~associated] > 0).any(axis=0)
    is_own = best > 0
    own = np.flatnonzero(is_own)
    ranked = own[np.lexsort((own, -best[own]))][:most]
    comparable = np.flatnonzero(~is_own & ~np.isnan(layer.effects))
    return {
        "heuristic": ranked,
        "count": own[np.lexsort((own, -best[own], -counts[own]))][:most],
        "control": rng.permutation(np.flatnonzero(has_other & ~is_own))[: len(ranked)],
        "contaminated": rng.permutation(np.flatnonzero(has_other))[: len(ranked)],
        "matched": _partners(layer.effects, ranked, comparable),
    }


def _partners(effects: np.ndarray, neurons: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return for each neuron in turn the free candidate of nearest effect.

    Neurons without an effect, and those left when no candidate is free, have no partner.
    """
    order = candidates[np.argsort(effects[candidates], kind="stable")]
    # plain lists, because removing an element is faster than from an array
    free, values = order.tolist(), effects[order].tolist()
    partners = []
    for effect in effects[neurons][~np.isnan(effects[neurons])][: len(free)].tolist():
        right = bisect_left(values, effect)
        neighbours = range(max(right - 1, 0), min(right + 1, len(values)))
        _, nearest = min((abs(values[i] - effect), i) for i in neighbours)
        partners.append(free.pop(nearest))
        del values[nearest]
    return np.array(partners, dtype=np.int64)
