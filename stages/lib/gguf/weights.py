"""Write the weights of a GGUF file as safetensors, in float32.

The shards are dequantised one after the other, so large models need little memory.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, dequantize, get_tensor_name_map
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from stages.lib.core import progress
from stages.lib.gguf.header import Header, Stored
from stages.lib.model.folder import ModelError

SHARD = 1 << 29  # bytes of float32; memory holds two copies of a shard
INDEX = "model.safetensors.index.json"
NOT_WEIGHTS = {"rope_freqs.weight"}  # stored in config.json


def dequantized(raw: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor in float32. raw: its bytes, uint8.

    Raises NotImplementedError if the package gguf cannot dequantise this kind.
    """
    rows = raw.reshape(*shape[:-1], -1)  # gguf dequantises a few rows at a time, to save memory
    return dequantize(rows, kind).reshape(shape)


class Weights:
    """The weights of a model, and the tensors of a file that each is made from.

    model: without weights. Raises ModelError if a tensor has no place in the model, or a weight has
    no tensor.
    """

    def __init__(self, header: Header, model: PreTrainedModel):
        self.header, config = header, model.config.to_dict()
        self.processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=config)
        self.names = self._names(model)
        self.shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            self.shapes.pop("lm_head.weight", None)
        self.sources: dict[str, list[Stored]] = {name: [] for name in self.shapes}
        for tensor in header.tensors.values():
            if tensor.name not in NOT_WEIGHTS:
                self.sources[self._weight(tensor)].append(tensor)
        for name, tensors in self.sources.items():
            if sum(tensor.count for tensor in tensors) != self.shapes[name].numel():
                stored = " and ".join(str(tensor.shape) for tensor in tensors) or "nothing"
                raise ModelError(
                    f"{header.path}: the weight {name} is {tuple(self.shapes[name])} in the model "
                    f"that its settings describe; the file holds {stored} for it"
                )

    def _names(self, model: PreTrainedModel) -> dict[str, str]:
        """Return the name of each weight in the file -> its name in the model.

        The function of transformers makes its table of names again for each module, and so takes
        seconds.
        """
        [kind] = [k for k, name in MODEL_ARCH_NAMES.items() if name == self.header.architecture]
        table = get_tensor_name_map(kind, model.config.num_hidden_layers)
        names: dict[str, str] = {}
        for weight in model.state_dict():
            stem, dot, end = self.processor.preprocess_name(weight).rpartition(".")
            if end not in ("weight", "bias"):
                stem, dot, end = f"{stem}{dot}{end}", "", ""
            theirs = table.get_name(stem)
            if theirs:
                names[f"{theirs}{dot}{end}"] = weight
            else:
                self.processor.perform_fallback_tensor_mapping(names, f"{dot}{end}", "", weight)
        return names

    def _weight(self, tensor: Stored) -> str:
        """Return the name of the weight that a tensor belongs to."""
        for name in (tensor.name, tensor.name.removesuffix(".weight")):
            weight = self.names.get(name)
            if weight in self.sources:
                return weight
        raise ModelError(
            f"{self.header.path}: the tensor {tensor.name} has no place in the model that "
            f"transformers makes for the architecture {self.header.architecture!r}; "
            "give the original folder (safetensors)"
        )

    @property
    def size(self) -> int:
        """Bytes of all weights in float32."""
        return 4 * sum(shape.numel() for shape in self.shapes.values())

    def save(self, folder: Path) -> None:
        """Write model.safetensors, or shards and their index."""
        shards = self._shards()
        files = ["model.safetensors"]
        if len(shards) > 1:
            count = len(shards)
            files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
            self._write_index(folder, files, shards)
        content = np.memmap(self.header.path, np.uint8, "r")
        label = f"converting {self.header.path.name}"
        total = sum(map(len, self.sources.values()))
        with progress.bar(total=total, desc=label, unit="tensor") as bar:
            for file, names in zip(files, shards, strict=True):
                self._write(folder / file, names, content)
                bar.update(sum(len(self.sources[name]) for name in names))

    def _write_index(self, folder: Path, files: list[str], shards: list[list[str]]) -> None:
        file_of: dict[str, str] = {}
        for file, names in zip(files, shards, strict=True):
            file_of |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self.size}, "weight_map": file_of}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")

    def _write(self, file: Path, names: list[str], content: np.ndarray) -> None:
        weights = {name: self._read(name, content) for name in names}
        save_file(weights, file, metadata={"format": "pt"})

    def _shards(self) -> list[list[str]]:
        """Return the names of the weights in each shard."""
        shards: list[list[str]] = [[]]
        full = 0
        for name, shape in self.shapes.items():
            if shards[-1] and full + 4 * shape.numel() > SHARD:
                shards.append([])
                full = 0
            shards[-1].append(name)
            full += 4 * shape.numel()
        return shards

    def _read(self, name: str, content: np.ndarray) -> torch.Tensor:
        """Return a weight in float32. content: the bytes of the file."""
        parsed: dict[str, Any] = {"tensors": {}}
        for tensor in self.sources[name]:
            raw = content[tensor.start : tensor.start + tensor.size]
            values = dequantized(raw, tensor.kind, tensor.shape)
            done = self.processor.process(
                weights=values,
                name=tensor.name,
                tensor_key_mapping=self.names,
                parsed_parameters=parsed,
            )
            if done.name is not None:
                own = done.weights if done.weights.flags.writeable else done.weights.copy()
                parsed["tensors"][name] = torch.from_numpy(own)
        weight = parsed["tensors"][name]
        if weight.shape != self.shapes[name]:
            raise ModelError(
                f"{self.header.path}: the weight {name} is {tuple(weight.shape)} in the file and "
                f"{tuple(self.shapes[name])} in the model that its settings describe"
            )
        if not torch.isfinite(weight).all():
            problem = f"{name} holds numbers that are not finite"
            raise ModelError(
                f"{self.header.path}: {problem}; the file is damaged: download it again"
            )
        return weight.contiguous()
