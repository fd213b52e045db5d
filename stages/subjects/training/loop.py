"""Training a causal language model, to the same bytes every time on one machine.

A run is a pure function of the model it starts with, its settings, its examples and the number of threads: the examples of
a step depend on (seed, step) alone and nothing is dropped out, so a run that resumes from its saved state continues exactly
as if it had never stopped. The module knows batches of token sequences and answers; it does not know what the prompts mean.
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

Batch = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # of (tokens (n, longest), lengths (n,), answers (n,)), right-padded
logging.disable_progress_bar()  # one bar is enough
LENGTH_BUCKETS = (8, 16)  # tokens


def bucket(sequences: list[list[int]], answers: list[int]) -> Batch:
    """Groups token sequences of similar length, so that little of a forward pass is padding."""
    groups: dict[int, list[int]] = {}
    for i, sequence in enumerate(sequences):
        groups.setdefault(sum(len(sequence) > limit for limit in LENGTH_BUCKETS), []).append(i)
    return [(*pad([sequences[i] for i in members]), np.array([answers[i] for i in members])) for _, members in sorted(groups.items())]


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
    def start(cls, section: str, settings: Optimisation, make: Callable[[], PreTrainedModel]) -> "Run":
        """A run at step 0 with the model that `make` returns. Fixes torch's threads and determinism for the whole process."""
        torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(settings.seed)
        model = make().eval().requires_grad_(True)  # eval: no dropout
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
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
        """One optimiser step on the mean cross entropy at the answers, which is the loss."""
        count = sum(len(answers) for _, _, answers in batch)
        self.loss = 0.0
        for tokens, lengths, answers in batch:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
                logits = self._logits(tokens, lengths)
            loss = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(answers), reduction="sum") / count
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
        """The most likely token after each prompt, per group of the batch, in float32."""
        return [self._logits(tokens, lengths).argmax(-1).numpy() for tokens, lengths, _ in batch]

    def _logits(self, tokens: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        """Logits behind each prompt (n, vocabulary): the unembedding gets no other position, where most of the work would be."""
        last = torch.arange(len(tokens)), torch.from_numpy(lengths) - 1
        handle = self.model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: (inputs[0][last],))
        try:
            return self.model(input_ids=torch.from_numpy(tokens), use_cache=False).logits
        finally:
            handle.remove()

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype = torch.bfloat16) -> None:
        """Writes the model with its tokenizer, as a folder that transformers loads."""
        copy.deepcopy(self.model).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
        tokenizer.save_pretrained(folder)
        write_sums(folder)

    def save_state(self, path: Path, fingerprint: str) -> None:
        """Writes all that the next step depends on. A kill while writing leaves the earlier state whole."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in state.items()}
        metadata = {"fingerprint": fingerprint, "step": str(self.step), "loss": str(self.loss), "log": json.dumps(self.log)}
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
        self.step, self.loss, self.log = int(metadata["step"]), float(metadata["loss"]), json.loads(metadata["log"])
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, i, key = name.split(".")
                states.setdefault(int(i), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        return True

    def measure(self, batches: dict[str, Batch]) -> None:
        """Adds a row to the log: where the run is, and its accuracy on each named batch."""
        row = {"step": self.step, "loss": self.loss, "learning_rate": self.learning_rate()}
        for name, batch in batches.items():
            hits = [p == answers for p, (_, _, answers) in zip(self.predict(batch), batch, strict=True)]
            row[name] = float(np.concatenate(hits).mean())
        self.log.append(row)


def _digest(tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
