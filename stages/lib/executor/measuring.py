"""What is read off a model's last-position logits."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from stages.lib.executor.pairs import PromptPairs


@dataclass(frozen=True)
class Measured:
    """What the model says under interventions, each (interventions, pairs); logits in the model's own precision, at least float32."""

    answer_logit: np.ndarray
    counterfactual_logit: np.ndarray
    max_logit: np.ndarray
    mean_logit: np.ndarray
    answer_probability: np.ndarray
    counterfactual_probability: np.ndarray
    predicted: np.ndarray

    def part(self, interventions: np.ndarray) -> "Measured":
        """Return what was measured under these interventions, numbered from 0."""
        return Measured(*(getattr(self, name)[interventions] for name in self.__dataclass_fields__))

    def stored(self) -> dict[str, np.ndarray]:
        """Of each name the numbers as tables keep them: logits in steps of 2^-16, probabilities to 16 binary digits.

        Rounding in float64, which differs from one kind of processor to another by 10^-14, then shows in one number of 10^9; were all
        digits of float32 kept, in one of 10^7.
        """
        return {name: _STEPS[name](getattr(self, name)) if name in _STEPS else getattr(self, name) for name in self.__dataclass_fields__}


def _logits(x: np.ndarray) -> np.ndarray:
    return np.round(x * 65536) / 65536 + 0.0  # + 0.0: no negative zero


def _probabilities(x: np.ndarray) -> np.ndarray:
    digits, exponents = np.frexp(x)
    return np.ldexp(np.round(digits * 65536) / 65536, exponents)


_STEPS = dict.fromkeys(("answer_logit", "counterfactual_logit", "max_logit", "mean_logit"), _logits)
_STEPS |= dict.fromkeys(("answer_probability", "counterfactual_probability"), _probabilities)


def joined(parts: Iterable[Measured], interventions: int) -> Measured:
    """Put together what was measured under so many interventions in all, some after another.

    Each part is copied to its place before the next one is computed. Small arrays kept between the
    logits would lie in the memory that those give back, in which the next ones then have no room.
    """
    whole: dict[str, np.ndarray] = {}
    first = 0
    for part in parts:
        for name in part.__dataclass_fields__:
            values = getattr(part, name)
            array = whole.setdefault(name, np.empty((interventions, *values.shape[1:]), values.dtype))
            array[first : first + len(values)] = values
        first += len(part.predicted)
    return Measured(**whole)


def measure(logits: torch.Tensor, pairs: PromptPairs) -> Measured:
    """Reads off last-position logits (interventions, pairs, vocabulary). Raises FloatingPointError on a NaN or infinity."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest, predicted = wide.max(-1)
    answers, others = (
        torch.from_numpy(a).to(logits.device).expand(len(logits), -1)[..., None] for a in (pairs.answers, pairs.counterfactual_answers)
    )
    answer, other, mean = wide.gather(-1, answers)[..., 0], wide.gather(-1, others)[..., 0], wide.mean(-1)
    total = (wide - largest[..., None]).exp_().sum(-1).log_() + largest
    if not torch.isfinite(total).all():
        raise FloatingPointError("the patched model's logits are not finite; try a wider dtype for this subject in params.yaml")
    probabilities = [(x.double() - total).exp() for x in (answer, other)]
    return Measured(*(x.cpu().numpy() for x in (answer, other, largest, mean, *probabilities, predicted)))
