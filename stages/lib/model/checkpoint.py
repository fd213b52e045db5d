"""Loading a subject: any folder that transformers' AutoModelForCausalLM reads, safetensors only, no remote code."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from stages.lib.model import architecture
from stages.lib.model.float64 import widen
from stages.lib.model.tokenizer import existing
from stages.lib.settings import Machine
from stages.lib.subject import SubjectSettings

logging.disable_progress_bar()


@dataclass(frozen=True)
class Checkpoint:
    """A loaded subject, its architecture found and its canary passed."""

    model: PreTrainedModel
    architecture: architecture.Architecture


def of(settings: SubjectSettings, machine: Machine) -> Checkpoint:
    """A subject's model, on this machine. Raises as `load` does."""
    return load(settings.source, settings.dtype, machine.device, machine.threads)


def load(folder: str | Path, dtype: str, device: str, threads: int) -> Checkpoint:
    """The model saved in `folder`, in evaluation mode. dtype: float32, float16, bfloat16 or float64.

    Raises FileNotFoundError where the folder is missing, ArchitectureError where its parts cannot be found.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no GPU here; set machine.device: cpu in params.yaml")
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        existing(folder), dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, attn_implementation="eager"
    )
    model.to(torch.device(device)).eval().requires_grad_(False)  # type: ignore[arg-type]
    if dtype == "float64":
        widen(model)
    found = architecture.find(model)
    architecture.check(model, found)
    return Checkpoint(model, found)


def fingerprint(folder: str | Path) -> dict[str, str]:
    """SHA-256 of a folder's weights and of its tokenizer, for the attributes of what is computed from them."""
    files = sorted(existing(folder).iterdir())
    return {
        "weights_sha256": _sha256([f for f in files if f.suffix == ".safetensors"]),
        "tokenizer_sha256": _sha256([f for f in files if f.name.startswith(("tokenizer", "vocab", "merges", "special_tokens"))]),
    }


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
