"""Tokenizers of numbers of several tokens, rebuilt by their rules: what they split, and where the blank goes."""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SIGNS = "+-*/="
DIGITS = list("0123456789")
WORDS = r"[A-Za-z-]+"


def by_digit(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A token for every digit, blanks are nowhere; BOS."""
    return _listed([*DIGITS, *words], rf"\d|{WORDS}|[^\s\w]", bos=True)


def by_digit_with_blanks() -> PreTrainedTokenizerFast:
    """As Qwen 2 and 3: bytes; a digit is a token, a blank in front of one another; no BOS."""
    return _bytes([], r"\p{N}", bos=False)


def by_digit_behind_a_mark() -> PreTrainedTokenizerFast:
    """As Llama 2 and Gemma: blanks are marks, the text begins with one, which is a token of its own in front of a digit; BOS."""
    pieces = ["<unk>", "<s>", "\u2581", *DIGITS, *SIGNS, *map(chr, range(97, 123)), *map(chr, range(65, 91)), *":?.()\n"]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>", pad_token="<unk>")


def by_three_digits(largest: int = 999) -> PreTrainedTokenizerFast:
    """As Llama 3: three digits are a token, from the left; a blank in front of them another; BOS."""
    return _bytes([str(number) for number in range(10, largest + 1)], r"\p{N}{1,3}", bos=True)


def by_three_from_the_right(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Three digits are a token, from the right; BOS."""
    numbers = [f"{number:0{width}}" for width in (1, 2, 3) for number in range(10**width)]
    return _listed([*numbers, *words], rf"\d{{1,3}}(?=(?:\d{{3}})*(?!\d))|{WORDS}|[^\s\w]", bos=True)


def merged(merges: Sequence[tuple[str, str]], split: str | None, bos: bool, whole: bool = False) -> PreTrainedTokenizerFast:
    """Bytes with these merges, the first one first; split: at what it matches no merge goes on; whole: a match that is a token is that."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", *alphabet]
    pieces += [a + b for a, b in merges if a + b not in pieces]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, list(merges), ignore_merges=whole))
    steps = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, **({"bos_token": "<s>"} if bos else {}))


def _bytes(numbers: list[str], split: str, bos: bool) -> PreTrainedTokenizerFast:
    """Every number is merged from the left: its beginnings are tokens."""
    return merged([(number[:-1], number[-1]) for number in sorted(numbers, key=len)], split, bos, whole=True)


def _listed(pieces: Sequence[str], split: str, bos: bool) -> PreTrainedTokenizerFast:
    every = ["<pad>", "<s>", "<unk>", *SIGNS, *pieces]
    made = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(dict.fromkeys(every))}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(split), behavior="removed", invert=True)
    special = {"unk_token": "<unk>", "pad_token": "<pad>"} | ({"bos_token": "<s>"} if bos else {})
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


KINDS = {
    "digits": by_digit,
    "qwen": by_digit_with_blanks,
    "llama-2": by_digit_behind_a_mark,
    "llama-3": by_three_digits,
    "right": by_three_from_the_right,
}
