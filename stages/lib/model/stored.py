"""A saved model, to be trained further."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from stages.lib.model import checkpoint
from stages.lib.model.tokenizer import existing


def load(folder: str | Path, threads: int) -> tuple[PreTrainedModel, torch.dtype]:
    """The model in float32, in which small steps are not rounded away, and the type its weights are stored in."""
    stored = AutoModelForCausalLM.from_pretrained(existing(folder), dtype="auto", local_files_only=True, use_safetensors=True).dtype
    return checkpoint.load(folder, "float32", "cpu", threads).model, stored
