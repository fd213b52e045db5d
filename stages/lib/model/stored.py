"""A saved model, to be trained further."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from stages.lib.model import checkpoint
from stages.lib.model.folder import ModelError


def load(folder: str | Path, threads: int) -> tuple[PreTrainedModel, torch.dtype]:
    """The model in float32, in which small steps are not rounded away, and the type its weights are stored in.

    Raises ModelError as checkpoint.load, and where parts of it were put together to be looked at: it could not be saved as it was.
    """
    stored = checkpoint.read(folder, dtype="auto")
    loaded = checkpoint.load(folder, "float32", "cpu", threads).model
    if loaded.state_dict().keys() != stored.state_dict().keys():
        raise ModelError(f"{folder} has mixtures of experts, or MLPs of other forms, whose weights are not trained further here")
    return loaded, stored.dtype
