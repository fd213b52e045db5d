"""Which neurons of a layer to silence for one prompt: those of its heuristics, or others that could stand in for them."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

ARMS = ("heuristic", "count", "control", "contaminated", "matched")


@dataclass(frozen=True)
class LayerHeuristics:
    """Heuristics of one layer. scores: corrected scores (heuristics, neurons), 0 where a neuron does not stand for one.

    effects: of each neuron on the answer (neurons,), NaN where not measured.
    """

    number: int
    heuristics: list[str]
    scores: np.ndarray
    effects: np.ndarray


def chosen(layer: LayerHeuristics, about: np.ndarray, most: int, seed: tuple[int, ...]) -> dict[str, np.ndarray]:
    """For each arm, up to `most` neurons, the first ones first. about: which heuristics the prompt satisfies, bool (heuristics,)."""
    rng = np.random.default_rng([*seed, layer.number])
    best = layer.scores[about].max(axis=0, initial=0)
    counts = (layer.scores[about] > 0).sum(axis=0)
    elsewhere = (layer.scores[~about] > 0).any(axis=0)
    mine = best > 0
    first = np.flatnonzero(mine)
    ranked = first[np.lexsort((first, -best[first]))][:most]
    return {
        "heuristic": ranked,
        "count": first[np.lexsort((first, -best[first], -counts[first]))][:most],
        "control": rng.permutation(np.flatnonzero(elsewhere & ~mine))[: len(ranked)],
        "contaminated": rng.permutation(np.flatnonzero(elsewhere))[: len(ranked)],
        "matched": _partners(layer.effects, ranked, np.flatnonzero(~mine & ~np.isnan(layer.effects))),
    }


def _partners(effects: np.ndarray, of: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each neuron in turn, the one of nearest effect that is still free; none where it has no effect or nobody is left."""
    order = among[np.argsort(effects[among], kind="stable")]
    free, values, found = order.tolist(), effects[order].tolist(), []  # of lists it is faster to take one away
    for effect in effects[of][~np.isnan(effects[of])][: len(free)].tolist():
        right = bisect_left(values, effect)
        _, nearest = min((abs(values[i] - effect), i) for i in (right - 1, right) if 0 <= i < len(values))
        found.append(free.pop(nearest))
        del values[nearest]
    return np.array(found, dtype=np.int64)
