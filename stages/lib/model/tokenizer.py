"""Loading a subject's tokenizer, and making that of our own: numbers, words and signs are one token each."""

import re
from collections.abc import Iterable
from math import inf
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stages.lib.model import contents
from stages.lib.model.folder import ModelError, existing, present, sentence

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


def load(folder: str | Path, largest: float = inf) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, whose tokens are exactly those of tokenizer.json.

    transformers rebuilds some tokenizers from the name of their class, which may split a text in other ways than the file does.
    largest: files of more bytes, such as weights, are not compared with their digests.
    Only what transformers adds around a text is kept. Raises ModelError where there is no tokenizer, where it needs code of its
    own or gives no offsets, or where it has tokens that the model lacks.
    """
    path = existing(folder, largest)
    if (path / "config.json").is_file():
        contents.check(path, whole=False)
    file = path / "tokenizer.json"
    exact = _from_file(file) if present(file) else None
    if exact is None and (pieces := sorted(path.glob("*.model"))):
        raise ModelError(
            f"{folder} has {pieces[0].name} (SentencePiece) and no tokenizer.json; write that where sentencepiece is installed: "
            f"python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    try:
        own = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        if exact is not None and not own.is_fast:
            own = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise ModelError(f"{folder} has no tokenizer that can be loaded: {sentence(error)}") from None
    if not own.is_fast:
        raise ModelError(f"{folder}: {type(own).__name__} does not say which token is which part of a text; it needs a tokenizer.json")
    if exact is not None:
        _replace(own, exact)
    _refuse_larger(own, path)
    return own


def around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens that a tokenizer itself puts before a text, such as BOS, and after it, such as EOS."""
    encoded = tokenizer("1", return_special_tokens_mask=True)
    tokens, special = encoded["input_ids"], encoded["special_tokens_mask"]
    start = next((i for i, added in enumerate(special) if not added), len(tokens))
    end = next((i for i in range(len(tokens), start, -1) if not special[i - 1]), start)
    return tokens[:start], tokens[end:]


def front(tokenizer: PreTrainedTokenizerBase, bos: bool | None) -> list[int]:
    """The tokens before every prompt. bos: whether that is BOS; None: what the tokenizer itself puts there."""
    if bos is None:
        return around(tokenizer)[0]
    return [tokenizer.bos_token_id] if bos else []


def knows(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Whether no part of a text becomes the unknown token; the token's own name, which a chat template may hold, is itself."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    unknown, name = tokenizer.unk_token_id, tokenizer.unk_token
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return unknown is None or not any(token == unknown and text[low:high].strip() != name for token, (low, high) in pairs)


def _from_file(file: Path) -> Tokenizer:
    try:
        exact = Tokenizer.from_file(str(file))
    except Exception as error:
        raise ModelError(f"{file.parent} has no tokenizer that can be loaded: {file.name}: {sentence(error)}") from None
    exact.no_truncation()
    exact.no_padding()
    return exact


def _replace(own: PreTrainedTokenizerBase, exact: Tokenizer) -> None:
    """Lets a tokenizer of transformers split texts as the one read from tokenizer.json does, whose special tokens it then has."""
    exact.post_processor = own.backend_tokenizer.post_processor  # what tokenizer("…") puts around a text
    missing = [name for name in own.SPECIAL_TOKENS_ATTRIBUTES if (token := getattr(own, name)) and exact.token_to_id(str(token)) is None]
    for name in missing:
        setattr(own, name, None)
    unknown = own.unk_token if isinstance(exact.model, models.Unigram) else exact.model.unk_token
    if unknown != own.unk_token:
        own.unk_token = unknown  # byte-level tokenizers have none, whatever the name of their class implies
    own._tokenizer = exact


def _refuse_larger(own: PreTrainedTokenizerBase, folder: Path) -> None:
    """Raises ModelError where the tokenizer has tokens of which the model has no embedding."""
    vocabulary = contents.limits(folder).vocabulary if (folder / "config.json").is_file() else None
    largest = max(own.get_vocab().values(), default=0)
    if vocabulary is not None and largest >= vocabulary:
        raise ModelError(
            f"{folder}: the tokenizer has token {largest:,}, {own.convert_ids_to_tokens(largest)!r}, and the model has embeddings of "
            f"tokens 0 to {vocabulary - 1:,}; give the folder the model's own tokenizer"
        )
