"""Training a causal language model, to the same bytes every time on one machine.

A run is a pure function of the model it starts with, its settings, its examples and the number of threads: the examples of
a step depend on (seed, step) alone and nothing is dropped out, so a run that resumes from its saved state continues exactly
as if it had never stopped. The module knows token sequences and what is to be said where; it does not know what prompts mean.
"""

import copy
import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from stages.lib.model.folder import write_sums
from stages.lib.model.padding import pad
from stages.subjects.settings import Optimisation

Example = tuple[
    list[int], list[int]
]  # tokens, and at each place the token that is to be said there, or UNASKED; equally many
Batch = list[
    tuple[np.ndarray, np.ndarray]
]  # of such tokens and what is to be said, both (n, longest), right-padded
UNASKED = -100  # nothing is asked at this place
logging.disable_progress_bar()  # one bar is enough
LENGTH_BUCKETS = (8, 16)  # tokens


def asked(prompt: list[int], answer: list[int]) -> Example:
    """A prompt that is to be followed by the tokens of an answer."""
    return prompt + answer[:-1], [UNASKED] * (len(prompt) - 1) + answer


def bucket(examples: list[Example]) -> Batch:
    """Groups examples of similar length, so that little of a forward pass is padding."""
    groups: dict[int, list[Example]] = {}
    for example in examples:
        groups.setdefault(sum(len(example[0]) > limit for limit in LENGTH_BUCKETS), []).append(
            example
        )
    return [_padded(members) for _, members in sorted(groups.items())]


def _padded(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    tokens, lengths = pad([tokens for tokens, _ in examples])
    targets, _ = pad([targets for _, targets in examples])
    return tokens, np.where(np.arange(tokens.shape[1]) < lengths[:, None], targets, UNASKED)


@dataclass
class Run:
    """A training run at some step: the model, its optimiser, the last step's loss and the rows of the log so far.

    section: where stages/subjects/params.yaml has the settings, for messages.
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
        cls, section: str, settings: Optimisation, make: Callable[[], PreTrainedModel]
    ) -> "Run":
        """A run at step 0 with the model that `make` returns. Fixes torch's threads and determinism for the whole process."""
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
        """Linear warm-up, then cosine decay to 0 at the last step."""
        s = self.settings
        if self.step < s.warmup_steps:
            return s.learning_rate * (self.step + 1) / s.warmup_steps
        progress = (self.step - s.warmup_steps) / max(1, s.steps - s.warmup_steps)
        return s.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def advance(self, batch: Batch) -> None:
        """One optimiser step on the mean cross entropy of what is to be said, which is the loss."""
        count = sum(int((targets != UNASKED).sum()) for _, targets in batch)
        self.loss = 0.0
        for tokens, targets in batch:
            places = np.nonzero(targets != UNASKED)
            with torch.autocast(
                "cpu", torch.bfloat16, enabled=self.settings.precision == "bfloat16"
            ):
                logits = self._logits(tokens, places)
            loss = (
                torch.nn.functional.cross_entropy(
                    logits.float(), torch.from_numpy(targets[places]), reduction="sum"
                )
                / count
            )
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
        """The most likely tokens (n, longest) where one is asked for, elsewhere UNASKED, per group of the batch, in float32."""
        said = [np.full_like(targets, UNASKED) for _, targets in batch]
        for there, (tokens, targets) in zip(said, batch, strict=True):
            places = np.nonzero(targets != UNASKED)
            there[places] = self._logits(tokens, places).argmax(-1).numpy()
        return said

    def _logits(self, tokens: np.ndarray, places: tuple[np.ndarray, ...]) -> torch.Tensor:
        """Logits at `places`, rows and columns (places, vocabulary): the unembedding gets no other, where most of the work would be."""
        at = tuple(map(torch.from_numpy, places))
        handle = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, inputs: (inputs[0][at],)
        )
        try:
            return self.model(input_ids=torch.from_numpy(tokens), use_cache=False).logits
        finally:
            handle.remove()

    def save(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Writes the model with its tokenizer, as a folder that transformers loads."""
        copy.deepcopy(self.model).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
        tokenizer.save_pretrained(folder)
        write_sums(folder)

    def save_state(self, path: Path, fingerprint: str) -> None:
        """Writes all that the next step depends on. A kill while writing leaves the earlier state whole."""
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
        partial.replace(path)

    def load_state(self, path: Path, fingerprint: str) -> bool:
        """Continues from a saved state; False, and nothing changed, if it belongs to other settings or data, or is damaged."""
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            if metadata["fingerprint"] != fingerprint:
                return False
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata.pop("digest", "") != _digest(tensors, metadata):
            print(f"{path} is damaged: the run starts again", file=sys.stderr)
            return False
        self.step, self.loss, self.log = (
            int(metadata["step"]),
            float(metadata["loss"]),
            json.loads(metadata["log"]),
        )
        self.model.load_state_dict(
            {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        )
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, i, key = name.split(".")
                states.setdefault(int(i), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        return True

    def measure(self, batches: dict[str, Batch]) -> None:
        """Adds a row to the log: where the run is, and its accuracy on each named batch: the share with every token right."""
        row = {"step": self.step, "loss": self.loss, "learning_rate": self.learning_rate()}
        for name, batch in batches.items():
            hits = [
                (said == targets).all(1)
                for said, (_, targets) in zip(self.predict(batch), batch, strict=True)
            ]
            row[name] = float(np.concatenate(hits).mean())
        self.log.append(row)


def _digest(tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(
            name.encode()
            + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
