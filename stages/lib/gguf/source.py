"""A GGUF file as a source of a model: its description without its weights, and its conversion."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages.lib.gguf import configuration, header
from stages.lib.gguf.header import Header
from stages.lib.gguf.vocabulary import tokenizer
from stages.lib.gguf.weights import Weights
from stages.lib.model import checkpoint
from stages.lib.model import tokenizer as tokenizers
from stages.lib.model.folder import ModelError, sentence, sha256, write_sums

NOTE = "from_gguf.txt"  # names the file that a folder was converted from, as `sha256sum` does
TEXTS = ("226-68=", "1 + 1 =", " 40\n100", "Hello, world's 2nd\ttest")
GIB = 1 << 30


@dataclass(frozen=True)
class Outline:
    """size: bytes of the weights in float32; kinds: how the file stores them, by number."""

    size: int
    kinds: list[str]
    tokenizer: PreTrainedTokenizerBase


def outline(path: Path, folder: Path) -> Outline:
    """Writes configuration and tokenizer of a GGUF file into a folder, and no weights.

    Raises ModelError where the file is not one whole model that is read exactly.
    """
    opened, model, made = _described(path, folder)
    kinds = Counter(tensor.kind.name for tensor in opened.tensors.values())
    return Outline(Weights(opened, model).size, [name for name, _ in kinds.most_common()], made)


def convert(path: Path, folder: Path) -> None:
    """Makes a safetensors folder, in float32, from a GGUF file. The folder is whole or not there.

    Raises ModelError as `outline`, and where the disk is too small.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        opened, model, made = _described(path, partial)
        _same(path, made, tokenizers.load(partial))
        weights = Weights(opened, model)
        if short := too_large(weights.size, partial):
            raise ModelError(f"{path}: {short}")
        weights.save(partial)
        (partial / NOTE).write_text(f"{sha256([path])}  {path.name}\n", encoding="utf-8")
        write_sums(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def too_large(size: int, folder: Path) -> str | None:
    """What is wrong with the disk, if weights of so many bytes do not fit where a folder lies."""
    if (free := shutil.disk_usage(folder).free) > size:
        return None
    return f"its weights take {size / GIB:,.1f} GiB as float32, and {free / GIB:,.1f} GiB are free here; free some"


def _described(path: Path, folder: Path) -> tuple[Header, PreTrainedModel, PreTrainedTokenizerBase]:
    """Writes config.json and the tokenizer; returns the file's header, the model without weights,
    and the tokenizer."""
    opened = header.read(path)
    configuration.refuse(opened)
    try:
        config = configuration.configured(opened)
        model = checkpoint.bare(config, "float32")
        made = tokenizer(opened)
    except Exception as error:  # transformers and tokenizers raise many kinds
        raise ModelError(f"{path}: its settings describe no model: {sentence(error)}") from None
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    made.save_pretrained(folder)
    return opened, model, made


def _same(path: Path, made: PreTrainedTokenizerBase, loaded: PreTrainedTokenizerBase) -> None:
    """Raises ModelError where transformers loads another tokenizer than the one it saved."""
    different = [text for text in TEXTS if loaded(text)["input_ids"] != made(text)["input_ids"]]
    if different or loaded.get_vocab() != made.get_vocab():
        shown = f", as {different[0]!r} shows" if different else ": it adds or renames tokens"
        raise ModelError(
            f"{path}: transformers does not load its tokenizer as it was converted{shown}; give the original folder (safetensors)"
        )
