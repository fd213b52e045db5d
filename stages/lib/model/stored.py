"""A saved model, to be trained further."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from stages.lib.model import checkpoint


def load(folder: str | Path, threads: int) -> tuple[PreTrainedModel, torch.dtype]:
    """The model in float32, in which small steps are not rounded away, and the type its weights are stored in."""
    stored = checkpoint.read(folder, dtype="auto").dtype
    return checkpoint.load(folder, "float32", "cpu", threads).model, stored
