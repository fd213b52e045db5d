"""Make the tokenizer of a GGUF file: its vocabulary, merges, special tokens and pre-tokenizer.

The pre-tokenizer splits a text into words before merges apply. transformers makes a tokenizer, too,
but uses GPT-2's pre-tokenizer if it does not know the file's (`tokenizer.ggml.pre`): digits of
SmolLM would stay together. This module refuses an unknown pre-tokenizer.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

from stages.lib.gguf.header import Header
from stages.lib.model.folder import ModelError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens, as llama.cpp numbers them
IS_SPECIAL = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}  # of tokens that are never split
SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
AS_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais"}
LLAMA3 = {"llama3", "llama-v3", "llama-bpe", "falcon3"}
WITH_BOS = {*LLAMA3, "tekken"}  # byte-level tokenizers that put BOS first by default
SPACE = "▁"
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer(header: Header) -> PreTrainedTokenizerFast:
    """Make the file's tokenizer. Raises ModelError if the file does not define it completely."""
    tokens = _tokens(header)
    kind = header.token("model")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise ModelError(
            f"{header.path} has a tokenizer of the kind {kind!r}; those of "
            f"{' and '.join(makers)} are supported: give the original folder (safetensors)"
        )
    made = makers[kind](header, tokens)
    special = {name: _named(header, tokens, key) for name, key in SPECIAL.items()}
    _add(made, header, tokens)
    if _puts_bos(header):
        bos = special["bos_token"]
        if bos is None:
            problem = "puts a BOS token first, but names none"
            raise ModelError(f"{header.path} {problem}; convert it again")
        made.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()),  # a copy of `made` would take half a second
        chat_template=header.metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=int(header.setting("context_length", 1 << 30)),
        **{name: token for name, token in special.items() if token is not None},
    )
    own._tokenizer = made
    if made.post_processor is None:
        own.update_post_processor()
    return own


def _tokens(header: Header) -> list[str]:
    tokens = header.token("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{header.path} has no tokenizer; give a file that has one")
    if len(set(tokens)) < len(tokens):
        raise ModelError(f"{header.path} has two tokens of the same name; convert the model again")
    rows = header.tensors["token_embd.weight"].shape[0]
    if len(tokens) > rows:
        problem = f"has {len(tokens):,} tokens, and embeddings of {rows:,}"
        raise ModelError(f"{header.path} {problem}; it is not one model: convert it again")
    return tokens


def _named(header: Header, tokens: list[str], key: str) -> str | None:
    """Return the token that a setting names, None if the file lacks the setting."""
    number = header.token(key)
    if number is None:
        return None
    if not 0 <= number < len(tokens):
        problem = f"{key} is {number}, of {len(tokens):,} tokens"
        raise ModelError(f"{header.path}: {problem}; convert the model again")
    return tokens[number]


def _puts_bos(header: Header) -> bool:
    """Return whether BOS precedes a prompt: the file's setting, or llama.cpp's default."""
    default = header.token("model") == "llama" or header.token("pre") in WITH_BOS
    return bool(header.token("add_bos_token", default))


def _byte_level(header: Header, tokens: list[str]) -> Tokenizer:
    merges = header.token("merges")
    if not merges:
        raise ModelError(f"{header.path} has no merges of its byte-level tokens; convert it again")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    numbers = _numbers(tokens)
    for pair in pairs:
        if len(pair) != 2 or "".join(pair) not in numbers:
            problem = f"its merge {' '.join(pair)!r} makes no token"
            raise ModelError(f"{header.path}: {problem}; convert it again")
    # Llama 3 keeps a word that is a token, even if no merges lead to it
    ignores_merges = header.token("pre") in LLAMA3
    made = Tokenizer(models.BPE(vocab=numbers, merges=pairs, ignore_merges=ignores_merges))
    made.pre_tokenizer = _cut(header)
    made.decoder = decoders.ByteLevel()
    return made


def _cut(header: Header) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer, which splits text into words, by its name in the file."""
    name = header.token("pre")
    parts = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        words = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([words, letters])
    if name in SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), parts])
    if name in AS_GPT2:
        return parts
    known = sorted({*GGUF_PRE_TOKENIZER_SPLITS, *SINGLE_DIGITS, *AS_GPT2})
    raise ModelError(
        f"{header.path}: its pre-tokenizer (tokenizer.ggml.pre = {name!r}) is not known, and how "
        f"digits are split depends on it; known: {', '.join(known)}; give the original folder"
    )


def _sentencepiece(header: Header, tokens: list[str]) -> Tokenizer:
    scores = header.token("scores")
    numbers = _numbers(tokens)
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{header.path} lacks the scores of its tokens; convert the model again")
    made = Tokenizer(
        models.BPE(
            vocab=numbers,
            merges=generate_merges(numbers, dict(zip(tokens, scores, strict=True))),
            unk_token=_named(header, tokens, "unknown_token_id"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normal: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    decoded = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.token("add_space_prefix", True):
        normal.insert(0, normalizers.Prepend(SPACE))
        decoded.append(decoders.Strip(" ", 1, 0))
    made.normalizer = normalizers.Sequence(normal)
    made.decoder = decoders.Sequence(decoded)
    return made


def _numbers(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _add(made: Tokenizer, header: Header, tokens: list[str]) -> None:
    """Mark tokens that are never split, such as <|im_start|>."""
    added = []
    for token, kind in zip(tokens, header.token("token_type", []), strict=False):
        if kind in IS_SPECIAL:
            added.append(AddedToken(token, normalized=False, special=IS_SPECIAL[kind]))
    made.add_tokens(added)
    if made.get_vocab_size() != len(tokens):
        raise ModelError(f"{header.path}: its special tokens are not those of its vocabulary")
