"""Check a model's folder before anything is loaded: its files, config.json and the headers of its
weights.

Only small files and headers are read, so a folder of any size is checked in less than a second.
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
WEIGHTS_OF_ANY_FORMAT = (*PICKLES, ".safetensors", ".gguf", ".h5", ".msgpack")
BUFFERS = re.compile(
    r"(attn|attention)\.(bias|causal_mask|masked_bias|embed_positions)$"
    r"|(inv_freq|position_ids|cos_cached|sin_cached)$"
)
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
    """Sizes that a prompt must not exceed: tokens with an embedding, and positions.

    None means that the model has no such limit.
    """

    vocabulary: int | None
    positions: int | None

    def check_length(self, tokens: int) -> None:
        """Raise ModelError if a prompt has more tokens than the model has positions."""
        if self.positions is not None and tokens > self.positions:
            raise ModelError(
                f"the longest prompt has {tokens:,} tokens, and the model has "
                f"{self.positions:,} positions (config.json); "
                "shorten the template, or study a model with more positions"
            )


def not_loaded(folder: str | Path, error: Exception) -> ModelError:
    """Return the error for a folder that transformers cannot load."""
    problem = f"{folder} holds no causal language model that can be loaded"
    return ModelError(f"{problem}: {sentence(error)}")


def check(folder: Path, whole: bool = True) -> None:
    """Refuse a folder that is damaged, is not a single language model, or would be misread.

    whole: whether the weights must be present. Raises ModelError, which names the file and the fix.
    """
    _refuse_unreadable(folder)
    config = read_config(folder)
    _refuse_other_weights(folder, config)
    for part, most in (("layer", MOST_LAYERS), ("label", MOST_LABELS)):
        count = max(_counts(config, part), default=0)
        if count > most:
            problem = f"{folder}: config.json asks for {count:,} {part}s"
            raise ModelError(f"{problem}; at most {most:,} are supported")
    if weights(folder):
        _check_tensors(folder, config)
    elif whole or unusable(folder):
        problem = f"{folder} holds no weights (no model.safetensors)"
        raise ModelError(f"{problem}; {_no_weights(folder)}")


def _check_tensors(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelError if the weights do not belong to a configuration, or would be misread."""
    tensors = stored_tensors(folder)
    if not tensors:
        raise ModelError(f"{folder} holds no weights: its safetensors files have no tensors")
    layers = max(_counts(config, "layer"), default=0)
    the_weights = f"the weights are {len(tensors):,} tensors"
    if layers > len(tensors):
        raise ModelError(f"{folder}: config.json asks for {layers:,} layers, and {the_weights}")
    experts = max([1, *_counts(config, "expert")])
    most = TENSORS_PER_LAYER * (10 + sum(_counts(config, "layer"))) * experts
    if len(tensors) > most:
        problem = f"{the_weights}, far more than a model of {layers} layers has"
        raise ModelError(f"{folder}: {problem}")
    if not config.get("quantization_config"):
        _refuse_integers(folder, tensors)
    _refuse_unscaled(folder, tensors)


def limits(folder: str | Path) -> Limits:
    """Return the limits of a model's text decoder.

    Raises ModelError if transformers cannot read config.json.
    """
    # imported late: this takes long, and most damaged folders are refused before
    from transformers import AutoConfig

    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = whole.get_text_config(decoder=True)
    except Exception as error:
        raise not_loaded(folder, error) from None
    positions = _size(text, "max_position_embeddings") or _size(text, "max_seq_len")
    vocabulary = getattr(text, "vocab_size", None)
    return Limits(vocabulary if isinstance(vocabulary, int) else None, positions)


def _size(config: Any, name: str) -> int | None:
    """Return a setting that is a number above 0, otherwise None."""
    size = getattr(config, name, None)
    return size if isinstance(size, int) and size > 0 else None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings of config.json.

    Raises ModelError if the file is missing, too large, or not a JSON object.
    """
    file = folder / "config.json"
    problem = f"{folder} is not a model folder"
    if not present(file):
        raise ModelError(f"{problem}: it has no config.json")
    if file.stat().st_size > CONFIG_BYTES:
        raise ModelError(f"{problem}: config.json is larger than {CONFIG_BYTES >> 10} KiB")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{problem}: config.json is not JSON: {sentence(error)}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{problem}: config.json is not an object, {{…}}")
    return config


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model's weights by name.

    Raises ModelError if a file is damaged or disagrees with the index.
    """
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
                both = f"{tensors[name].file} and {file}"
                raise ModelError(f"{name} is in both {both}: they are shards of different models")
            tensors[name] = tensor
    for name, shard in weight_map(folder).items():
        if name not in tensors or tensors[name].file.name != shard:
            problem = f"{folder / shard} lacks {name}, which {INDEX} places in it"
            raise ModelError(f"{problem}: it is a shard of another model")
    return tensors


def is_buffer(name: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor is a mask or a table of positions rather than a parameter.

    transformers computes these from config.json. Older files of GPT-2, GPT-J, GPT-Neo, GPT-NeoX,
    CodeGen and Llama store them with the weights. A mask has four axes. A bias has one axis, and is
    never ignored.
    """
    match = BUFFERS.search(name)
    if match is None:
        return False
    return match[2] not in ("bias", "causal_mask") or len(tensor.shape) == 4


def unusable(folder: Path) -> list[str]:
    """Return the names of files that look like weights but cannot be loaded."""
    names = sorted(file.name for file in folder.iterdir())
    return [name for name in names if name.endswith(WEIGHTS_OF_ANY_FORMAT)]


def _no_weights(folder: Path) -> str:
    """Return what to do about a folder without weights."""
    names = unusable(folder)
    if not names:
        return "download the model's files again"
    formats = {Path(name).suffix for name in names}
    if not formats.isdisjoint(PICKLES):
        problem = "is a pickle, which may run code and is never loaded"
    elif ".safetensors" in formats:
        way_out = "rename a whole model's file to model.safetensors"
        return f"{names[0]} without {INDEX} is not loaded; {way_out}"
    else:
        problem = "has another format"
    return f"{names[0]} {problem}; {CONVERT.format(folder)}"


def _refuse_other_weights(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelError if other weights than the checked ones belong to the model."""
    adapters = [*folder.glob("adapter_config.json"), *folder.glob("adapter_model.*")]
    if adapters:
        raise ModelError(
            f"{adapters[0]} is an adapter (PEFT), which would be ignored; merge the adapter first "
            "(`merge_and_unload`), save the merged model, and study that"
        )
    if config.get("transformers_weights") is not None:
        raise ModelError(
            f"{folder}: config.json names other weights (transformers_weights); remove that key"
        )


def _refuse_integers(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    """Raise ModelError if weights have a type that needs the scales of a quantization."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS and not is_buffer(name, tensor):
            raise ModelError(
                f"{folder}: {name} is stored as {tensor.dtype}, and config.json has no "
                "quantization_config that says how to scale it; "
                "use the weights in float32, float16 or bfloat16"
            )


def _refuse_unscaled(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    """Raise ModelError if a tensor of 8-bit floats lacks its scale, e.g. weight_scale_inv."""
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
    """Yield the numbers of layers, labels or experts in a configuration and its parts."""
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        yield from _counts(value, word)
        is_count = key.startswith(("n_", "num_")) or key.endswith(f"{word}s")
        if is_count and word in key and isinstance(value, int):
            yield value


def _header_bytes(file: Path) -> int:
    """Return the length of a safetensors file's header. Raises ModelError if it is too long."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > size - 8:
        problem = f"{file} is not a safetensors file, or is truncated: it has {size:,} bytes"
        raise ModelError(f"{problem}; download it again")
    if length > HEADER_BYTES:
        raise ModelError(
            f"{file}: its header has {length:,} bytes; at most {HEADER_BYTES:,} are supported, "
            "which is 100,000 tensors; save the model again (`save_pretrained`), in shards"
        )
    return length


@lru_cache(maxsize=1024)
def _header(file: Path, size: int, changed: int) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file.

    size: of the file, in bytes; changed: when it last changed, in ns. Raises ModelError if the file
    is truncated or is not a safetensors file.
    """
    length = _header_bytes(file)
    with file.open("rb") as stream:
        stream.seek(8)
        text = stream.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(entry["dtype"], tuple(entry["shape"]), file)
            for name, entry in entries.items()
        }
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except UNREADABLE as error:
        problem = f"its header cannot be read: {sentence(error)}"
        raise ModelError(f"{file} is not a safetensors file: {problem}") from None
    described = 8 + length + end
    if size != described:
        problem = f"{file} has {size:,} bytes, and its header describes {described:,}"
        raise ModelError(f"{problem}: download it again")
    return tensors


def _refuse_unreadable(folder: Path) -> None:
    """Raise ModelError if reading a folder's files would never end, or would take long."""
    with os.scandir(folder) as scanned:
        entries = list(islice(scanned, ENTRIES + 1))
    if len(entries) > ENTRIES:
        problem = f"{folder} holds more than {ENTRIES:,} files"
        raise ModelError(f"{problem}; give a folder that holds a single model")
    for entry in entries:
        with suppress(OSError):  # a broken link, which `present` reports
            status = entry.stat()
            kind = status.st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise ModelError(f"{entry.path} is not a file but a pipe or a device; remove it")
            if TEXTS.search(entry.name) and status.st_size > TEXT_BYTES:
                raise ModelError(
                    f"{entry.path} has {status.st_size:,} bytes; at most {TEXT_BYTES:,} are "
                    "supported; download it again, or remove it if it is not part of the model"
                )
