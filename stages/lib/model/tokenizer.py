"""Loading a subject's tokenizer, and making that of our own: numbers, words and signs are one token each."""

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stages.lib.model.folder import ModelError, existing, sentence

TOKEN = r"[0-9]+|[A-Za-z]+(?:-[A-Za-z]+)*|[^\sA-Za-z0-9]"
PAD, BOS, UNKNOWN = "<pad>", "<s>", "<unk>"


def build(largest_number: int, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of the numbers 0..largest_number and of every word and sign in `texts`; it puts BOS in front."""
    words = sorted({token for text in texts for token in re.findall(TOKEN, text)} - {str(n) for n in range(largest_number + 1)})
    vocabulary = [PAD, BOS, UNKNOWN, *map(str, range(largest_number + 1)), *words]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary.index(BOS))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, unk_token=UNKNOWN, pad_token=PAD)


def load(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved in a model folder. Raises ModelError where there is none, or none that runs without code of its own."""
    try:
        return AutoTokenizer.from_pretrained(existing(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{folder} has no tokenizer that can be loaded: {sentence(error)}") from None
