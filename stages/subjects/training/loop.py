"""Train a causal language model, with the same bytes every time on one machine.

A run is a pure function of its first model, settings, examples and number of threads. The examples
of a step depend on (seed, step) alone, and there is no dropout. So a run that resumes from its
saved state continues exactly as if it had never stopped. This module knows sequences of tokens and
which token is to be predicted at which position; it does not know what prompts mean.
"""

import copy
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from stages.lib.model.folder import write_sums
from stages.lib.model.padding import pad
from stages.subjects.settings import Optimisation

# Tokens, and as many targets: the token to predict at each position, or NO_TARGET.
Example = tuple[list[int], list[int]]
# Groups of tokens and targets, both (n, longest), right-padded.
Batch = list[tuple[np.ndarray, np.ndarray]]
NO_TARGET = -100
logging.disable_progress_bar()  # one bar is enough
LENGTH_BUCKETS = (8, 16)  # tokens


def example(prompt: list[int], answer: list[int]) -> Example:
    """Return the example of a prompt after which the tokens of an answer are to be predicted."""
    return prompt + answer[:-1], [NO_TARGET] * (len(prompt) - 1) + answer


def bucket(examples: list[Example]) -> Batch:
    """Group examples of similar length, so that little of a forward pass is padding."""
    groups: dict[int, list[Example]] = {}
    for tokens, targets in examples:
        group = sum(len(tokens) > limit for limit in LENGTH_BUCKETS)
        groups.setdefault(group, []).append((tokens, targets))
    return [_padded(members) for _, members in sorted(groups.items())]


def _padded(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    all_tokens, all_targets = zip(*examples, strict=True)
    tokens, lengths = pad(list(all_tokens))
    targets, _ = pad(list(all_targets))
    return tokens, np.where(np.arange(tokens.shape[1]) < lengths[:, None], targets, NO_TARGET)


@dataclass
class Run:
    """A training run at some step.

    section: of the settings in stages/subjects/params.yaml, for messages; loss: of the last step;
    log: a row for each measurement so far.
    """

    section: str
    settings: Optimisation
    model: PreTrainedModel
    optimiser: torch.optim.AdamW
    step: int
    loss: float
    log: list[dict]

    @classmethod
    def start(
        cls,
        section: str,
        settings: Optimisation,
        make: Callable[[], PreTrainedModel],
    ) -> "Run":
        """Return a run at step 0 with the model that `make` returns.

        Sets torch's threads and determinism for the whole process.
        """
        torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(settings.seed)
        model = make().eval().requires_grad_(True)  # eval: no dropout
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        optimiser = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.betas[0], settings.betas[1]),
        )
        return cls(section, settings, model, optimiser, 0, math.nan, [])

    def learning_rate(self) -> float:
        """Return the rate of this step: linear warm-up, then cosine decay to 0 at the last step."""
        s = self.settings
        if self.step < s.warmup_steps:
            return s.learning_rate * (self.step + 1) / s.warmup_steps
        progress = (self.step - s.warmup_steps) / max(1, s.steps - s.warmup_steps)
        return s.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def advance(self, batch: Batch) -> None:
        """Make one optimiser step on the loss, the mean cross entropy over all targets.

        Raises FloatingPointError if the loss is not finite.
        """
        count = sum(int((targets != NO_TARGET).sum()) for _, targets in batch)
        half = self.settings.precision == "bfloat16"
        self.loss = 0.0
        for tokens, targets in batch:
            at = np.nonzero(targets != NO_TARGET)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits = self._logits(tokens, at)
            expected = torch.from_numpy(targets[at])
            loss = cross_entropy(logits.float(), expected, reduction="sum") / count
            loss.backward()
            self.loss += loss.item()
        if not math.isfinite(self.loss):
            way_out = f"lower {self.section}.learning_rate in stages/subjects/params.yaml"
            raise FloatingPointError(f"loss is {self.loss} at step {self.step}; {way_out}")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1

    @torch.no_grad()
    def predict(self, batch: Batch) -> list[np.ndarray]:
        """Return the most likely token at each target of each group, computed in float32.

        Returned: (n, longest) for each group of the batch, NO_TARGET where there is no target.
        """
        predictions = []
        for tokens, targets in batch:
            at = np.nonzero(targets != NO_TARGET)
            predicted = np.full_like(targets, NO_TARGET)
            predicted[at] = self._logits(tokens, at).argmax(-1).numpy()
            predictions.append(predicted)
        return predictions

    def _logits(self, tokens: np.ndarray, at: tuple[np.ndarray, ...]) -> torch.Tensor:
        """Return the logits at some positions only, (positions, vocabulary), to save time.

        at: rows and columns of these positions in `tokens`.
        """
        indices = tuple(map(torch.from_numpy, at))
        handle = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, inputs: (inputs[0][indices],)
        )
        try:
            return self.model(input_ids=torch.from_numpy(tokens), use_cache=False).logits
        finally:
            handle.remove()

    def save(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Write the model with its tokenizer as a folder that transformers loads."""
        copy.deepcopy(self.model).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
        tokenizer.save_pretrained(folder)
        write_sums(folder)

    def save_state(self, path: Path, fingerprint: str) -> None:
        """Write everything that the next step depends on.

        If the process is killed meanwhile, the earlier state stays whole.
        """
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in state.items()}
        metadata = {
            "fingerprint": fingerprint,
            "step": str(self.step),
            "loss": str(self.loss),
            "log": json.dumps(self.log),
        }
        metadata["digest"] = _digest(tensors, metadata)
        partial = path.with_suffix(".partial")
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, partial, metadata)
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # else the file may be empty after a power failure
        partial.replace(path)

    def load_state(self, path: Path, fingerprint: str) -> bool:
        """Continue from a saved state, and return whether that is possible.

        If the state belongs to other settings or data, or is damaged, nothing changes.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("fingerprint", fingerprint) != fingerprint:
                    return False
                names = file.keys()  # the file is not a dict
                tensors = {name: file.get_tensor(name) for name in names}
            is_whole = metadata.pop("digest", "") == _digest(tensors, metadata)
        except SafetensorError:
            is_whole = False
        if not is_whole:
            print(f"{path} is damaged: the run starts again", file=sys.stderr)
            return False
        weights: dict[str, torch.Tensor] = {}
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "model":
                weights[rest] = tensor
            elif kind == "optimiser":
                i, key = rest.split(".")
                states.setdefault(int(i), {})[key] = tensor
        self.step, self.loss = int(metadata["step"]), float(metadata["loss"])
        self.log = json.loads(metadata["log"])
        self.model.load_state_dict(weights)
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        return True

    def measure(self, batches: dict[str, Batch]) -> None:
        """Add a row to the log: step, loss, learning rate, and the accuracy on each named batch.

        An example counts as correct if all its targets are.
        """
        row = {"step": self.step, "loss": self.loss, "learning_rate": self.learning_rate()}
        for name, batch in batches.items():
            correct = []
            for predicted, (_, targets) in zip(self.predict(batch), batch, strict=True):
                correct.append((predicted == targets).all(1))
            row[name] = float(np.concatenate(correct).mean())
        self.log.append(row)


def _digest(tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
