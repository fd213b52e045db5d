"""Changes to a model's folder, for tests of what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from stages.lib.model.folder import WEIGHTS

Change = Callable[[Path], object]


def changed(name: str, **values: object) -> Change:
    """Set keys of a JSON file."""

    def write(folder: Path) -> None:
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | values))

    return write


def stored(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Change the stored tensors."""

    def write(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return write


def updated(name: str, tensor: torch.Tensor) -> Change:
    """Store a tensor under a name."""
    return stored(lambda tensors: tensors.update({name: tensor}))
