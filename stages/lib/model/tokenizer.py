"""Loading a subject's tokenizer, and making that of our own: numbers, words and signs are one token each."""

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stages.lib.model.folder import ModelError, existing, sentence

TOKEN = r"[0-9]+|[A-Za-z]+(?:-[A-Za-z]+)*|[^\sA-Za-z0-9]"
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


def build(largest_number: int, texts: Iterable[str], digits: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of the numbers 0..largest_number and of every word and sign in `texts`; it puts BOS in front.

    digits: every digit is a token, and there is one that ends an answer, whose length no longer goes without saying.
    """
    token = TOKEN.replace("[0-9]+", "[0-9]") if digits else TOKEN
    numbers = [str(n) for n in range(10 if digits else largest_number + 1)]
    words = sorted({found for text in texts for found in re.findall(token, text)} - set(numbers))
    vocabulary = [PAD, BOS, UNKNOWN, *([EOS] if digits else []), *numbers, *words]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(token), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary.index(BOS))]
    )
    ends = {"eos_token": EOS} if digits else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, unk_token=UNKNOWN, pad_token=PAD, **ends)


def load(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved in a model folder. Raises ModelError where there is none, or none that runs without code of its own."""
    try:
        return AutoTokenizer.from_pretrained(existing(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{folder} has no tokenizer that can be loaded: {sentence(error)}") from None
