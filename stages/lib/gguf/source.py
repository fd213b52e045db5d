"""Use a GGUF file as the source of a model: describe it without weights, or convert it."""

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
    """A description of a GGUF file.

    size: bytes of the weights in float32; kinds: types in which the file stores tensors, the most
    frequent first.
    """

    size: int
    kinds: list[str]
    tokenizer: PreTrainedTokenizerBase


def outline(path: Path, folder: Path) -> Outline:
    """Write the configuration and tokenizer of a GGUF file into a folder, but no weights.

    Raises ModelError if the file is not one whole model that can be converted exactly.
    """
    opened, model, made = _described(path, folder)
    counts = Counter(tensor.kind.name for tensor in opened.tensors.values())
    kinds = sorted(counts, key=lambda kind: -counts[kind])
    return Outline(Weights(opened, model).size, kinds, made)


def convert(path: Path, folder: Path) -> None:
    """Make a safetensors folder, in float32, from a GGUF file.

    The folder exists only once it is complete. Raises ModelError as `outline` does, and if the disk
    is too small.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        opened, model, made = _described(path, partial)
        _same(path, made, tokenizers.load(partial))
        weights = Weights(opened, model)
        problem = too_large(weights.size, partial)
        if problem:
            raise ModelError(f"{path}: {problem}")
        weights.save(partial)
        (partial / NOTE).write_text(f"{sha256([path])}  {path.name}\n", encoding="utf-8")
        write_sums(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def too_large(size: int, folder: Path) -> str | None:
    """Return a message if the disk of a folder has no room for weights of `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free > size:
        return None
    sizes = f"{size / GIB:,.1f} GiB as float32, and {free / GIB:,.1f} GiB are free"
    return f"its weights take {sizes} here; free some space on the disk"


def _described(path: Path, folder: Path) -> tuple[Header, PreTrainedModel, PreTrainedTokenizerBase]:
    """Write config.json and the tokenizer.

    Returns the file's header, the model without weights, and the tokenizer.
    """
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
    """Raise ModelError if transformers loads another tokenizer than the saved tokenizer."""
    problem = ""
    if loaded.get_vocab() != made.get_vocab():
        problem = ": it adds or renames tokens"
    for text in TEXTS:
        if loaded(text)["input_ids"] != made(text)["input_ids"]:
            problem = f", for example for {text!r}"
    if problem:
        raise ModelError(
            f"{path}: transformers loads another tokenizer than the converted one{problem}; "
            "give the original folder (safetensors)"
        )
