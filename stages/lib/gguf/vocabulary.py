"""Makes the tokenizer of a GGUF file: its vocabulary, merges and special tokens, and how text is cut
before they apply.

transformers makes one, too, but takes GPT-2's way of cutting text where it does not know the file's
(`tokenizer.ggml.pre`): digits of SmolLM would stay together. Here an unknown way is refused.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.tokenization_utils_base import generate_merges

from stages.lib.gguf.header import Header
from stages.lib.model.folder import ModelError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens, as llama.cpp numbers them
SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
AS_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais"}
LLAMA3 = {"llama3", "llama-v3", "llama-bpe", "falcon3"}
WITH_BOS = {*LLAMA3, "tekken"}  # of byte-level ones those that put BOS first, if a file is silent
SPACE = "▁"
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer(header: Header) -> PreTrainedTokenizerFast:
    """The file's tokenizer. Raises ModelError where the file does not say what it would do."""
    tokens = _tokens(header)
    kind = header.token("model")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise ModelError(
            f"{header.path} has a tokenizer of the kind {kind!r}; those of "
            f"{' and '.join(makers)} are read: give the original folder (safetensors)"
        )
    made = makers[kind](header, tokens)
    special = {name: _named(header, tokens, key) for name, key in SPECIAL.items()}
    _add(made, header, tokens)
    bos = special["bos_token"]
    if _puts_bos(header) and bos is None:
        raise ModelError(f"{header.path} puts a BOS token first, but names none; convert it again")
    if _puts_bos(header) and bos is not None:
        made.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()),  # would be copied, which takes half a second
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
        raise ModelError(
            f"{header.path} has {len(tokens):,} tokens, and embeddings of {rows:,}; it is not one model: convert it again"
        )
    return tokens


def _named(header: Header, tokens: list[str], key: str) -> str | None:
    if (number := header.token(key)) is None:
        return None
    if not 0 <= number < len(tokens):
        raise ModelError(f"{header.path}: {key} is {number}, of {len(tokens):,} tokens")
    return tokens[number]


def _puts_bos(header: Header) -> bool:
    """Whether BOS stands before a prompt: as the file says, or as llama.cpp does unasked."""
    unasked = header.token("model") == "llama" or header.token("pre") in WITH_BOS
    return bool(header.token("add_bos_token", unasked))


def _byte_level(header: Header, tokens: list[str]) -> Tokenizer:
    merges = header.token("merges")
    if not merges:
        raise ModelError(f"{header.path} has no merges of its byte-level tokens; convert it again")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    known = {token: number for number, token in enumerate(tokens)}
    if odd := next((pair for pair in pairs if len(pair) != 2 or "".join(pair) not in known), None):
        raise ModelError(f"{header.path}: its merge {' '.join(odd)!r} makes no token")
    # Llama 3 takes a word that is a token as it is, also where merges would not reach it.
    whole = header.token("pre") in LLAMA3
    made = Tokenizer(models.BPE(vocab=known, merges=pairs, ignore_merges=whole))
    made.pre_tokenizer = _cut(header)
    made.decoder = decoders.ByteLevel()
    return made


def _cut(header: Header) -> pre_tokenizers.PreTokenizer:
    """How text is cut into the words within which tokens merge, by the file's name for it."""
    name = header.token("pre")
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        words = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
        return pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    parts = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), parts])
    if name in AS_GPT2:
        return parts
    known = sorted({*GGUF_PRE_TOKENIZER_SPLITS, *SINGLE_DIGITS, *AS_GPT2})
    raise ModelError(
        f"{header.path}: how its tokenizer cuts text (tokenizer.ggml.pre = {name!r}) is not known, "
        f"and digits may depend on it; known are {', '.join(known)}: give the original folder"
    )


def _sentencepiece(header: Header, tokens: list[str]) -> Tokenizer:
    scores = header.token("scores")
    known = {token: number for number, token in enumerate(tokens)}
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{header.path} lacks the scores of its tokens; convert the model again")
    merges = generate_merges(known, dict(zip(tokens, scores, strict=True)))
    unknown = _named(header, tokens, "unknown_token_id")
    made = Tokenizer(
        models.BPE(vocab=known, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = [normalizers.Replace(" ", SPACE)]
    prefixed = bool(header.token("add_space_prefix", True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), *spaces] if prefixed else spaces
    )
    plain = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*plain, decoders.Strip(" ", 1, 0)] if prefixed else plain)
    return made


def _add(made: Tokenizer, header: Header, tokens: list[str]) -> None:
    """Marks tokens that are never cut into pieces, such as <|im_start|>."""
    kinds = header.token("token_type", [])
    whole = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}  # whether they are special
    added = [
        AddedToken(token, normalized=False, special=whole[kind])
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in whole
    ]
    made.add_tokens(added)
    if made.get_vocab_size() != len(tokens):
        raise ModelError(f"{header.path}: its special tokens are not those of its vocabulary")
