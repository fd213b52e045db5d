"""Estimate how much work runs are, for progress bars: how many tokens pass a layer.

A run computes the tokens from the first patched one on, in the layers from the first patched one
on. So runs of one table differ by a factor of 17 in a model of 24 layers with long prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stages.lib.executor.interventions import ALL, Intervention
from stages.lib.executor.pairs import PromptPairs
from stages.lib.executor.values import linear
from stages.lib.model.architecture import Architecture

MEASURED = 1.5  # layer passes that take as long as the measures and the row of a run


@dataclass(frozen=True)
class LayerPasses:
    """How many layer passes a run of one model is.

    layers: number of layers; unembedding: layers with as many weights as the unembedding uses.
    """

    layers: int
    unembedding: float

    @classmethod
    def for_model(cls, a: Architecture, tokens: int | None = None) -> "LayerPasses":
        """Return the layer passes of runs that compute the logits of so many tokens, or of all."""
        in_layer = sum(weights.numel() for weights in a.layers[-1].block.parameters())
        logits = a.vocabulary if tokens is None else tokens
        return cls(len(a.layers), a.width * logits / in_layer)

    def count(self, pairs: PromptPairs, interventions: Sequence[Intervention]) -> int:
        """Return the layer passes of some interventions on these pairs, rounded."""
        length = pairs.tokens.shape[1]
        first = {position: int(at.min()) for position, at in pairs.positions.items()} | {ALL: 0}
        passes = 0.0
        for intervention in interventions:
            if intervention.patches:
                tokens = length - min(first[p.position] for p in intervention.patches)
                passes += tokens * self._passed(intervention) + self.unembedding + MEASURED
        return round(passes * len(pairs))

    def _passed(self, intervention: Intervention) -> int:
        """Return how many layers a run passes; an MLP's changes are added after its layer."""
        layer = min(patch.layer for patch in intervention.patches)
        return self.layers - layer - linear(intervention.at(layer))
