"""Load a saved model to train it further."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from stages.lib.model import checkpoint
from stages.lib.model.folder import ModelError


def load(folder: str | Path, threads: int) -> tuple[PreTrainedModel, torch.dtype]:
    """Return the model in float32, and the dtype in which its weights are stored.

    In float32, small steps are not rounded away. Raises ModelError as checkpoint.load does, and if
    parts of the model were merged or reshaped, because it could not be saved in its own form.
    """
    stored = checkpoint.read(folder, dtype="auto")
    loaded = checkpoint.load(folder, "float32", "cpu", threads).model
    if loaded.state_dict().keys() != stored.state_dict().keys():
        problem = "has mixtures of experts, or MLPs of an unusual form"
        raise ModelError(f"{folder} {problem}; training them further is not supported")
    return loaded, stored.dtype
