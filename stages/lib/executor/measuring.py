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
        return {
            name: _STEPS[name](getattr(self, name)) if name in _STEPS else getattr(self, name)
            for name in self.__dataclass_fields__
        }


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
            array = whole.setdefault(
                name, np.empty((interventions, *values.shape[1:]), values.dtype)
            )
            array[first : first + len(values)] = values
        first += len(part.predicted)
    return Measured(**whole)


def measure(logits: torch.Tensor, pairs: PromptPairs) -> Measured:
    """Read off last-position logits (interventions, pairs, vocabulary), in at least float32.

    Raises FloatingPointError on a NaN or infinity.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    largest, predicted = logits.max(-1)
    answers, others = (
        torch.from_numpy(tokens).to(logits.device).expand(len(logits), -1)[..., None]
        for tokens in (pairs.answers, pairs.counterfactual_answers)
    )
    answer, other = (logits.gather(-1, tokens)[..., 0].to(wide) for tokens in (answers, others))
    mean, largest = logits.mean(-1, dtype=wide), largest.to(wide)
    if logits.dtype == wide:
        total = (logits - largest[..., None]).exp_().sum(-1).log_() + largest
    else:  # a GPU widens the logits on the way, in one kernel
        total = answer - torch.log_softmax(logits, -1, dtype=wide).gather(-1, answers)[..., 0]
    if not torch.isfinite(total).all():
        problem = "the patched model's logits are not finite"
        raise FloatingPointError(f"{problem}; try a wider dtype for this subject in params.yaml")
    probabilities = [(logit.double() - total).exp() for logit in (answer, other)]
    results = (answer, other, largest, mean, *probabilities, predicted)
    return Measured(*(result.cpu().numpy() for result in results))
