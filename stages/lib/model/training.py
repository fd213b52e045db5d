"""Training a small Llama-architecture model from scratch, to the same bytes every time on one machine.

A run is a pure function of its settings, its examples and the number of threads: the examples of a step depend on
(seed, step) alone, so a run that resumes from its saved state continues exactly as if it had never stopped.
The module knows batches of token sequences and answers; it does not know what the prompts mean.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from stages.lib.model.padding import pad
from stages.lib.params.training import Train

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
    """A training run at some step: the model, its optimiser and the rows of the log so far."""

    settings: Train
    model: LlamaForCausalLM
    optimiser: torch.optim.AdamW
    step: int
    log: list[dict]

    @classmethod
    def start(cls, settings: Train, tokenizer: PreTrainedTokenizerFast) -> "Run":
        """A run at step 0. Fixes torch's threads and determinism for the whole process."""
        torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(settings.seed)
        shape = settings.model
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.width,
            intermediate_size=shape.neurons,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.positions,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
        model = LlamaForCausalLM(config)
        model.set_attn_implementation("eager")  # faster than sdpa on short prompts
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(settings.betas[0], settings.betas[1]),
        )
        return cls(settings, model, optimiser, 0, [])

    def learning_rate(self) -> float:
        """Linear warm-up, then cosine decay to 0 at the last step."""
        s = self.settings
        if self.step < s.warmup_steps:
            return s.learning_rate * (self.step + 1) / s.warmup_steps
        progress = (self.step - s.warmup_steps) / max(1, s.steps - s.warmup_steps)
        return s.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def advance(self, batch: Batch) -> float:
        """One optimiser step on the mean cross entropy at the answers; returns it."""
        count = sum(len(answers) for _, _, answers in batch)
        total = 0.0
        self.model.train()
        for tokens, lengths, answers in batch:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
                logits = self._logits(tokens, lengths)
            loss = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(answers), reduction="sum") / count
            loss.backward()
            total += loss.item()
        if not math.isfinite(total):
            raise FloatingPointError(f"loss is {total} at step {self.step}; lower train.learning_rate in params.yaml")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        return total

    @torch.no_grad()
    def predict(self, batch: Batch) -> list[np.ndarray]:
        """The most likely token after each prompt, per group of the batch, in float32."""
        self.model.eval()
        return [self._logits(tokens, lengths).argmax(-1).numpy() for tokens, lengths, _ in batch]

    def _logits(self, tokens: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        hidden = self.model.model(input_ids=torch.from_numpy(tokens), use_cache=False).last_hidden_state
        return self.model.lm_head(hidden[torch.arange(len(tokens)), torch.from_numpy(lengths) - 1])  # (n, vocabulary)

    def save_checkpoint(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        """Writes the model in bfloat16, with its tokenizer, as a folder that transformers loads."""
        shipped = LlamaForCausalLM(self.model.config).bfloat16()
        shipped.load_state_dict(self.model.state_dict())
        shipped.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def save_state(self, path: Path, fingerprint: str) -> None:
        """Writes all that the next step depends on. A kill while writing leaves the earlier state whole."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": tensor for name, tensor in state.items()}
        metadata = {"fingerprint": fingerprint, "step": str(self.step), "log": json.dumps(self.log)}
        partial = path.with_suffix(".partial")
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, partial, metadata)
        partial.replace(path)

    def load_state(self, path: Path, fingerprint: str) -> bool:
        """Continues from a saved state; False, and nothing changed, if it belongs to other settings or data."""
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            if metadata["fingerprint"] != fingerprint:
                return False
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        self.step, self.log = int(metadata["step"]), json.loads(metadata["log"])
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, i, key = name.split(".")
                states.setdefault(int(i), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
        return True


def evaluate(run: Run, batches: dict[str, Batch], correct: Callable[[str, float], None]) -> None:
    """Calls `correct(name, accuracy)` for each named batch."""
    for name, batch in batches.items():
        hits = [p == answers for p, (_, _, answers) in zip(run.predict(batch), batch, strict=True)]
        correct(name, float(np.concatenate(hits).mean()))
