"""What a model's folder holds, before anything is loaded: config.json, the headers of its weights, and what cannot be studied.

Everything here reads small files and headers only, so a folder of any size is checked in less than a second.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from stages.lib.model.folder import INDEX, ModelError, present, sentence, weight_map, weights

ENTRIES = 10_000  # files of a folder; the largest published models have fewer than 1,000
CONFIG_BYTES = 1 << 19  # some hundred times those of most models
# Of a tokenizer's files and the index of weights. The largest tokenizer.json of a published model
# has 34 MB; the index of the most tensors, 140,000, has 14 MB.
TEXT_BYTES = 36 << 20
TEXTS = re.compile(
    r"(tokenizer|vocab|merges|special_tokens|added_tokens|chat_template|generation_config)"
    r"|\.(model|tiktoken|spm|index\.json)$"
)
# Of safetensors headers, which take about 150 bytes a tensor: no published file has 10,000 tensors,
# and no model 200,000. To parse so much takes a second; safetensors itself would read 100 MB.
HEADER_BYTES, ALL_HEADER_BYTES = 16 << 20, 32 << 20
MOST_LAYERS = 256  # the deepest published models have fewer than 200; to outline so many takes 2 s
MOST_LABELS = 10_000  # of classifiers: transformers names each, though no language model has any
TENSORS_PER_LAYER = 100  # of each expert; published models have fewer than 40
UNREADABLE = (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError)
FLOATS = ("F64", "F32", "F16", "BF16")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
BUFFERS = re.compile(r"(attn|attention)\.(bias|causal_mask|masked_bias|embed_positions)$|(inv_freq|position_ids|cos_cached|sin_cached)$")
CONVERT = (
    "convert it, if you trust it: python -c \"from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained('{0}').save_pretrained('{0}')\", and remove the old files"
)  # fmt: skip


class StoredTensor(NamedTuple):
    """A tensor of a safetensors file, as the file's header describes it."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


@dataclass(frozen=True)
class Limits:
    """Sizes that a prompt must not exceed: tokens with an embedding, and positions; None where the model has no such limit."""

    vocabulary: int | None
    positions: int | None

    def check_length(self, tokens: int) -> None:
        """Raises ModelError where a prompt of so many tokens is longer than the model's positions."""
        if self.positions is not None and tokens > self.positions:
            raise ModelError(
                f"the longest prompt has {tokens:,} tokens, and the model has {self.positions:,} positions (config.json); "
                "shorten the template, or study a model with more positions"
            )


def check(folder: Path, whole: bool = True) -> None:
    """Refuse a folder that is damaged, that is no single causal language model, or whose weights would be misread.

    whole: whether the weights must be there, too. Raises ModelError naming the file and what to do about it.
    """
    _refuse_unreadable(folder)
    config = read_config(folder)
    _refuse_other_weights(folder, config)
    layers = max([0, *_counts(config, "layer")])
    if layers > MOST_LAYERS:
        raise ModelError(f"{folder}: config.json asks for {layers:,} layers; at most {MOST_LAYERS} are supported")
    labels = max([0, *_counts(config, "label")])
    if labels > MOST_LABELS:
        allowed = f"at most {MOST_LABELS:,} are supported"
        raise ModelError(f"{folder}: config.json asks for {labels:,} labels; {allowed}")
    files = weights(folder)
    if not files:
        if whole or unusable(folder):
            raise ModelError(f"{folder} holds no weights, that is, no model.safetensors; " + _no_weights(folder))
        return
    tensors = stored_tensors(folder)
    if not tensors:
        raise ModelError(f"{folder} holds no weights: its safetensors files have no tensors")
    if layers > len(tensors):
        raise ModelError(f"{folder}: config.json asks for {layers:,} layers, and the weights are {len(tensors):,} tensors")
    most = TENSORS_PER_LAYER * (10 + sum(_counts(config, "layer"))) * max([1, *_counts(config, "expert")])
    if len(tensors) > most:
        raise ModelError(f"{folder}: the weights are {len(tensors):,} tensors, far more than a model of {layers} layers has")
    if not config.get("quantization_config"):
        _refuse_integers(folder, tensors)
    _refuse_unscaled(folder, tensors)


def limits(folder: str | Path) -> Limits:
    """The limits of a model's text decoder. Raises ModelError where transformers cannot read config.json."""
    from transformers import (
        AutoConfig,
    )  # only here: slow to import, and most folders are refused before

    try:
        text = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).get_text_config(decoder=True)
    except Exception as error:
        raise ModelError(f"{folder} holds no causal language model that can be loaded: {sentence(error)}") from None
    sizes = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    positions = next((size for size in sizes if isinstance(size, int) and size > 0), None)
    vocabulary = getattr(text, "vocab_size", None)
    return Limits(vocabulary if isinstance(vocabulary, int) else None, positions)


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of config.json. Raises ModelError where it is missing or is not an object of JSON."""
    file = folder / "config.json"
    if not present(file):
        raise ModelError(f"{folder} is no model folder: it has no config.json")
    if file.stat().st_size > CONFIG_BYTES:
        most = f"{CONFIG_BYTES >> 10} KiB"
        raise ModelError(f"{folder} is no model folder: config.json is larger than {most}")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{folder} is no model folder: config.json is not JSON: {sentence(error)}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder} is no model folder: config.json is not an object, {{…}}")
    return config


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model's weights by name. Raises ModelError where a file is damaged or disagrees with the index."""
    tensors: dict[str, StoredTensor] = {}
    files = [file for file in weights(folder) if file.name != INDEX]
    together = sum(map(_header_bytes, files))
    if together > ALL_HEADER_BYTES:
        raise ModelError(
            f"{folder}: the headers of its safetensors files have {together:,} bytes; at most "
            f"{ALL_HEADER_BYTES:,} are supported, which is 200,000 tensors"
        )
    for file in files:
        status = file.stat()
        for name, tensor in _header(file, status.st_size, status.st_mtime_ns).items():
            if name in tensors:
                raise ModelError(f"{name} is in both {tensors[name].file} and {file}: they are shards of different models")
            tensors[name] = tensor
    for name, shard in weight_map(folder).items():
        if name not in tensors or tensors[name].file.name != shard:
            raise ModelError(f"{folder / shard} lacks {name}, which {INDEX} places in it: it is a shard of another model")
    return tensors


def is_buffer(name: str, tensor: StoredTensor) -> bool:
    """Whether a tensor is a mask or a table of positions, not a parameter: transformers computes it from config.json.

    Older files of GPT-2, GPT-J, GPT-Neo, GPT-NeoX, CodeGen and Llama store them beside the weights. A mask has four axes; a bias has
    one, and is never ignored.
    """
    found = BUFFERS.search(name)
    return found is not None and (found[2] not in ("bias", "causal_mask") or len(tensor.shape) == 4)


def unusable(folder: Path) -> list[str]:
    """Names of files that look like weights and are not loaded here."""
    names = sorted(file.name for file in folder.iterdir())
    return [name for name in names if name.endswith((*PICKLES, ".safetensors", ".gguf", ".h5", ".msgpack"))]


def _no_weights(folder: Path) -> str:
    names = unusable(folder)
    if any(name.endswith(PICKLES) for name in names):
        return f"{names[0]} is a pickle, which may run code and is never loaded; " + CONVERT.format(folder)
    if any(name.endswith(".safetensors") for name in names):
        return f"{names[0]} beside no {INDEX} is not loaded; rename a whole model's file to model.safetensors"
    if names:
        return f"{names[0]} has another format; " + CONVERT.format(folder)
    return "download the model's files again"


def _refuse_other_weights(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError where other weights than those of model.safetensors or its index belong to the model."""
    adapters = [*folder.glob("adapter_config.json"), *folder.glob("adapter_model.*")]
    if adapters:
        raise ModelError(
            f"{adapters[0]} is an adapter (PEFT), which would be ignored; merge the adapter first (`merge_and_unload`), save the merged "
            "model, and study that"
        )
    if config.get("transformers_weights") is not None:
        raise ModelError(f"{folder}: config.json names other weights (transformers_weights); remove that key")


def _refuse_integers(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    """Raises ModelError where weights are stored in a type that is meaningless without the scales of a quantization."""
    names = [name for name, tensor in tensors.items() if tensor.dtype not in FLOATS and not is_buffer(name, tensor)]
    if names:
        raise ModelError(
            f"{folder}: {names[0]} is stored as {tensors[names[0]].dtype}, and config.json has no quantization_config that says how to "
            "scale it; use the weights in float32, float16 or bfloat16"
        )


def _refuse_unscaled(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    """Raise ModelError where a tensor of 8-bit floats lacks its scale, e.g. weight_scale_inv."""
    before = (name[: name.rindex("scale")] for name in tensors if "scale" in name)
    scaled = {name.rstrip("._") for name in before}
    for name, tensor in tensors.items():
        if tensor.dtype.startswith("F8_") and not {name, name.removesuffix(".weight")} & scaled:
            raise ModelError(
                f"{folder}: {name} is stored as {tensor.dtype} without its scale, which fp8 "
                f"weights need ({name}_scale_inv or {name}_scale); download the model again, or "
                "use the weights in float32, float16 or bfloat16"
            )


def _counts(config: Any, word: str) -> Iterator[int]:
    """How many layers, or experts, a configuration or one of its parts asks for."""
    parts = config.values() if isinstance(config, dict) else ()
    for part in parts:
        yield from _counts(part, word)
    for key, value in config.items() if isinstance(config, dict) else ():
        counts = key.startswith(("n_", "num_")) or key.endswith(f"{word}s")
        if counts and word in key and isinstance(value, int):
            yield value


def _header_bytes(file: Path) -> int:
    """The length of a safetensors file's header. Raises ModelError where it is too long."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > size - 8:
        problem = f"{file} is no safetensors file, or is cut off: it has {size:,} bytes"
        raise ModelError(f"{problem}; download it again")
    if length > HEADER_BYTES:
        raise ModelError(
            f"{file}: its header has {length:,} bytes; at most {HEADER_BYTES:,} are supported, "
            "which is 100,000 tensors; save the model again (`save_pretrained`), in shards"
        )
    return length


@lru_cache(maxsize=1024)
def _header(file: Path, size: int, changed: int) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file of this size, changed at this time, in ns.

    Raises ModelError where the file is cut off, or is no such file.
    """
    length = _header_bytes(file)
    with file.open("rb") as stream:
        stream.seek(8)
        text = stream.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        tensors = {name: StoredTensor(entry["dtype"], tuple(entry["shape"]), file) for name, entry in entries.items()}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except UNREADABLE as error:
        problem = f"its header cannot be read: {sentence(error)}"
        raise ModelError(f"{file} is no safetensors file: {problem}") from None
    if size != 8 + length + end:
        raise ModelError(f"{file} has {size:,} bytes, and its header describes {8 + length + end:,}: download it again")
    return tensors


def _refuse_unreadable(folder: Path) -> None:
    """Raises ModelError where reading a folder's files would never end, or would take long."""
    with os.scandir(folder) as scanned:
        entries = list(islice(scanned, ENTRIES + 1))
    if len(entries) > ENTRIES:
        problem = f"{folder} holds more than {ENTRIES:,} files"
        raise ModelError(f"{problem}; give a folder that holds one model alone")
    for entry in entries:
        with suppress(OSError):  # a broken link, of which `present` says more
            status = entry.stat()
            kind = status.st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise ModelError(f"{entry.path} is not a file but a pipe or a device; remove it")
            if TEXTS.search(entry.name) and status.st_size > TEXT_BYTES:
                raise ModelError(
                    f"{entry.path} has {status.st_size:,} bytes; at most {TEXT_BYTES:,} are "
                    "supported; download it again, or remove it if it is no part of the model"
                )
