"""Build tokenizers that split numbers into several tokens, like those of published models.

They differ in how they split digits, and in where the blank before a number goes.
"""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SIGNS = "+-*/="
DIGITS = list("0123456789")
WORDS = r"[A-Za-z-]+"
MARK = "\u2581"  # SentencePiece's blank
BLANK = "\u0120"  # that of bytes


def by_digit(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Each digit is a token; blanks are dropped; BOS."""
    return _listed([*DIGITS, *words], rf"\d|{WORDS}|[^\s\w]")


def by_digit_with_blanks(text: str = "") -> PreTrainedTokenizerFast:
    """As Qwen 2 and 3: bytes; each digit is a token, and so is a blank before a digit; no BOS.

    text: its words, each with the blank before it, are tokens.
    """
    words = [BLANK + word for word in text.split()]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    return merged(list(dict.fromkeys(merges)), r"\p{N}", bos=False, whole=True)


def by_digit_behind_a_mark() -> PreTrainedTokenizerFast:
    """As Llama 2 and Gemma: marks for blanks, each a token before a digit; BOS.

    A text starts with a mark.
    """
    letters = [*map(chr, range(97, 123)), *map(chr, range(65, 91))]
    pieces = ["<unk>", "<s>", MARK, *DIGITS, *SIGNS, *letters, *":?.()\n"]
    made = Tokenizer(models.BPE(_numbers(pieces), [], unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        unk_token="<unk>",
        pad_token="<unk>",
    )


def by_three_digits(largest: int = 999) -> PreTrainedTokenizerFast:
    """As Llama 3: three digits from the left are a token; a blank before them is another; BOS."""
    return _bytes(list(map(str, range(10, largest + 1))), r"\p{N}{1,3}", bos=True)


def by_three_from_the_right(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Three digits from the right are a token; BOS."""
    numbers = [f"{number:0{width}}" for width in (1, 2, 3) for number in range(10**width)]
    return _listed([*numbers, *words], rf"\d{{1,3}}(?=(?:\d{{3}})*(?!\d))|{WORDS}|[^\s\w]")


def merged(
    merges: Sequence[tuple[str, str]],
    split: str | None,
    bos: bool,
    whole: bool = False,
) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer.

    merges: the first applies first; split: merges do not cross matches of this expression, None for
    no limit; whole: a match that is a token is not split.
    """
    pieces = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    made = Tokenizer(models.BPE(_numbers(pieces), list(merges), ignore_merges=whole))
    steps: list = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if split:
        steps.insert(0, pre_tokenizers.Split(Regex(split), "isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>"} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def _bytes(numbers: list[str], split: str, bos: bool) -> PreTrainedTokenizerFast:
    """Merge each number from the left: its first digits are tokens, too."""
    merges = [(number[:-1], number[-1]) for number in sorted(numbers, key=len)]
    return merged(merges, split, bos, whole=True)


def _listed(pieces: Sequence[str], split: str) -> PreTrainedTokenizerFast:
    """Build a tokenizer of whole words. split: expression of a token; the rest is dropped."""
    numbers = _numbers(["<pad>", "<s>", "<unk>", *SIGNS, *pieces])
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(split), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )


def _numbers(pieces: Sequence[str]) -> dict[str, int]:
    """Number the tokens; repeated tokens count once."""
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


KINDS = {
    "digits": by_digit,
    "qwen": by_digit_with_blanks,
    "llama-2": by_digit_behind_a_mark,
    "llama-3": by_three_digits,
    "right": by_three_from_the_right,
}
