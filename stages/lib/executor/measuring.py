"""Read measures off a model's last-position logits."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from stages.lib.executor.pairs import PromptPairs


@dataclass(frozen=True)
class Measured:
    """Measures of the model's predictions under interventions, each (interventions, pairs).

    Logits are in the model's own precision, at least float32.
    """

    answer_logit: np.ndarray
    counterfactual_logit: np.ndarray
    max_logit: np.ndarray
    mean_logit: np.ndarray
    answer_probability: np.ndarray
    counterfactual_probability: np.ndarray
    predicted: np.ndarray

    def part(self, interventions: np.ndarray) -> "Measured":
        """Return what was measured under these interventions, numbered from 0."""
        return Measured(*(array[interventions] for array in vars(self).values()))

    def stored(self) -> dict[str, np.ndarray]:
        """Return each measure by name, as tables keep it.

        Logits are in steps of 2^-16, probabilities have 16 binary digits. Rounding in float64
        differs by 10^-14 between kinds of processors. It then changes one number in 10^9, instead
        of one in 10^7 if tables kept all digits of float32.
        """
        measures = dict(vars(self))
        for name, in_steps in _STEPS.items():
            measures[name] = in_steps(measures[name])
        return measures


def _logits(x: np.ndarray) -> np.ndarray:
    return np.round(x * 65536) / 65536 + 0.0  # + 0.0: no -0.0


def _probabilities(x: np.ndarray) -> np.ndarray:
    digits, exponents = np.frexp(x)
    return np.ldexp(np.round(digits * 65536) / 65536, exponents)


_STEPS = dict.fromkeys(("answer_logit", "counterfactual_logit", "max_logit", "mean_logit"), _logits)
_STEPS |= dict.fromkeys(("answer_probability", "counterfactual_probability"), _probabilities)


def joined(parts: Iterable[Measured], interventions: int) -> Measured:
    """Join the measures of consecutive interventions; interventions: how many there are in all.

    Each part is copied to its place before the next one is computed. Small arrays kept between two
    parts would fragment the memory that the first part's logits free.
    """
    whole: dict[str, np.ndarray] = {}
    first = 0
    for part in parts:
        for name, values in vars(part).items():
            array = whole.setdefault(
                name, np.empty((interventions, *values.shape[1:]), values.dtype)
            )
            array[first : first + len(values)] = values
        first += len(part.predicted)
    return Measured(**whole)


def measure(logits: torch.Tensor, pairs: PromptPairs) -> Measured:
    """Measure last-position logits (interventions, pairs, vocabulary), in at least float32.

    Raises FloatingPointError on a NaN or infinity.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    largest, predicted = logits.max(-1)
    answers, others = _index(pairs.answers, logits), _index(pairs.counterfactual_answers, logits)
    answer = logits.gather(-1, answers)[..., 0].to(wide)
    other = logits.gather(-1, others)[..., 0].to(wide)
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


def _index(tokens: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
    """Return tokens (pairs,) as an index into logits: (interventions, pairs, 1)."""
    return torch.from_numpy(tokens).to(logits.device).expand(len(logits), -1)[..., None]
