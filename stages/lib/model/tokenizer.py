"""Load a subject's tokenizer, and make the tokenizer of our own models."""

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
LOCAL = {"local_files_only": True, "trust_remote_code": False}
CONVERT = (
    'python -c "from transformers import AutoTokenizer as T; '
    "T.from_pretrained('{0}').save_pretrained('{0}')\""
)


def build(
    largest_number: int,
    texts: Iterable[str],
    digits: bool = False,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the numbers 0..largest_number and of each word and sign in `texts`.

    Each of them is one token, and BOS precedes every text. digits: each digit is a token instead of
    each number, and EOS is added to end answers, because they differ in length.
    """
    token, numbers, special = TOKEN, range(largest_number + 1), [PAD, BOS, UNKNOWN]
    ends = {}
    if digits:
        token, numbers = TOKEN.replace("[0-9]+", "[0-9]"), range(10)
        ends = {"eos_token": EOS}
        special.append(EOS)
    known = list(map(str, numbers))
    words: set[str] = set()
    for text in texts:
        words.update(re.findall(token, text))
    vocabulary = [*special, *known, *sorted(words - set(known))]
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(token), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, ids[BOS])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        unk_token=UNKNOWN,
        pad_token=PAD,
        **ends,
    )


def load(folder: str | Path, largest: float = inf) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder; it splits texts exactly as tokenizer.json does.

    transformers rebuilds some tokenizers from the name of their class, and may then split a text in
    another way. Only the tokens that transformers adds around a text are kept.
    largest: files of more bytes, such as weights, are not compared with their digests.
    Raises ModelError if there is no tokenizer, or if the tokenizer needs code of its own, gives no
    offsets, or has tokens that the model lacks.
    """
    path = existing(folder, largest)
    if (path / "config.json").is_file():
        contents.check(path, whole=False)
    file = path / "tokenizer.json"
    exact = _from_file(file) if present(file) else None
    pieces = sorted(path.glob("*.model"))
    if exact is None and pieces:
        problem = f"{folder} has {pieces[0].name} (SentencePiece) and no tokenizer.json"
        way_out = f"write one where sentencepiece is installed: {CONVERT.format(folder)}"
        raise ModelError(f"{problem}; {way_out}")
    try:
        own = AutoTokenizer.from_pretrained(path, **LOCAL)
        if exact is not None and not own.is_fast:
            own = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise _not_loaded(folder, sentence(error)) from None
    if not own.is_fast:
        problem = f"{type(own).__name__} does not say which token is which part of a text"
        raise ModelError(f"{folder}: {problem}; it needs a tokenizer.json")
    if exact is not None:
        _replace(own, exact)
    _refuse_larger(own, path)
    return own


def around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before a text, such as BOS, and after it."""
    encoded = tokenizer("1", return_special_tokens_mask=True)
    tokens, is_special = encoded["input_ids"], encoded["special_tokens_mask"]
    if 0 not in is_special:
        return tokens, []
    end = len(tokens) - is_special[::-1].index(0)
    return tokens[: is_special.index(0)], tokens[end:]


def front(tokenizer: PreTrainedTokenizerBase, bos: bool | None) -> list[int]:
    """Return the tokens before every prompt.

    bos: whether BOS precedes prompts; None: the tokens that the tokenizer itself puts there.
    """
    if bos is None:
        return around(tokenizer)[0]
    return [tokenizer.bos_token_id] if bos else []


def knows(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Return whether no part of a text becomes the unknown token.

    The unknown token's own name, which a chat template may contain, is allowed.
    """
    if tokenizer.unk_token_id is None:
        return True
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if token == tokenizer.unk_token_id and text[start:end].strip() != tokenizer.unk_token:
            return False
    return True


def _not_loaded(folder: str | Path, reason: str) -> ModelError:
    return ModelError(f"{folder} has no tokenizer that can be loaded: {reason}")


def _from_file(file: Path) -> Tokenizer:
    try:
        exact = Tokenizer.from_file(str(file))
    except Exception as error:
        raise _not_loaded(file.parent, f"{file.name}: {sentence(error)}") from None
    exact.no_truncation()
    exact.no_padding()
    return exact


def _replace(own: PreTrainedTokenizerBase, exact: Tokenizer) -> None:
    """Make a tokenizer of transformers split texts like one that was read from tokenizer.json.

    Special tokens that tokenizer.json lacks are removed.
    """
    # this adds the tokens around a text
    exact.post_processor = own.backend_tokenizer.post_processor
    for name in own.SPECIAL_TOKENS_ATTRIBUTES:
        token = getattr(own, name)
        if token and exact.token_to_id(str(token)) is None:
            setattr(own, name, None)
    # byte-level tokenizers have no unknown token, even if their class has one
    if not isinstance(exact.model, models.Unigram) and exact.model.unk_token != own.unk_token:
        own.unk_token = exact.model.unk_token
    own._tokenizer = exact


def _refuse_larger(own: PreTrainedTokenizerBase, folder: Path) -> None:
    """Raise ModelError if the tokenizer has tokens of which the model has no embedding."""
    if not (folder / "config.json").is_file():
        return
    vocabulary = contents.limits(folder).vocabulary
    largest = max(own.get_vocab().values(), default=0)
    if vocabulary is not None and largest >= vocabulary:
        name = own.convert_ids_to_tokens(largest)
        raise ModelError(
            f"{folder}: the tokenizer has token {largest:,}, {name!r}, and the model has "
            f"embeddings of tokens 0 to {vocabulary - 1:,}; "
            "give the folder the model's own tokenizer"
        )
