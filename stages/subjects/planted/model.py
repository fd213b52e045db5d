"""A Llama of two layers whose second layer's neurons compute given functions of op1, op2 and the result, by construction.

Layer 0's attention copies op1, the operator and op2 of `op1 operator op2 =` to the last position. Its MLP holds the kinks
relu(s - r) of s = op1, op2, op1 + op2 and op1 - op2 (the last two each under its operator alone), of which any function of
whole numbers is a sum; every feature gets a dimension of the stream. A neuron of layer 1 reads features, and its activation
is their weighted sum. The unembedding of a number reads the features that name it; layer 1's attention puts in the votes for
the unknown token. Where a prompt goes through, everything is a whole number or a binary fraction that float32 holds exactly:
even the norms, because each number comes with four whole numbers whose squares fill its own up to the same sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP
from transformers.utils import logging

from stages.lib.model.tokenizer import UNKNOWN
from stages.subjects.planted.neurons import PlantedBag

logging.disable_progress_bar()
# Dimensions of the stream. A number is its value and what fills its square; an operator is one of three flags.
NUMBER, FLAGS, ONE, FILL = range(0, 5), range(5, 8), 8, range(9, 13)
OP1, OPERATOR, OP2, REST = (
    range(13, 18),
    range(18, 21),
    range(21, 26),
    range(26, 30),
)  # at the last position, put there by layer 0
DECOY, ASIDE, FEATURES = (
    30,
    range(31, 47),
    47,
)  # votes for the unknown token; directions that name no heuristic; first feature
ADD, SUBTRACT, NEITHER = range(3)
UNIT = 16  # the size of a constant and of a flag
SHARP = 64  # silu(SHARP x) is SHARP relu(x) at whole x, in float64 to the last bit but for 1e-26
HEIGHT = 1 / 16  # of a feature in the stream: so low that features leave the norm as it is
WRITTEN = 32  # what one vote adds to the stream
DECOY_VOTES = 1.5  # between the two votes of a right answer and the one that remains when a heuristic is knocked out
HEADS, HEAD_WIDTH, SCORE = 4, 16, 1024  # the score leaves nothing to any position but one
SQUARES = (
    1 << 17
)  # least sum of squares of a token; large, so that what neurons write hardly changes the norm
POSITIONS = 128


@dataclass(frozen=True)
class Kink:
    """A neuron of layer 0, relu(s - at): s is `of`, and for a result only under one operator."""

    of: str
    at: int
    operator: int | None = None


def kinks(largest: int) -> list[Kink]:
    """Those of every function of operands 0..largest and of results; a kink far below all numbers stands for the constant."""
    operands = [Kink(of, at) for of in ("op1", "op2") for at in range(largest)]
    results = [
        Kink("result", at, operator)
        for operator, end in ((ADD, 2 * largest), (SUBTRACT, largest))
        for at in range(-1, end)
    ]
    return [Kink("one", -1), *operands, *results]


def coefficients(
    quantity: str, values: np.ndarray, bends: list[Kink]
) -> Iterator[tuple[int, float]]:
    """(index of a kink, its factor) such that the sum is values[n] at n = 0, 1, …; results below 0 give 0."""
    front = [0.0, 0.0] if quantity == "result" else [values[0], values[0]]
    turns = np.diff(
        np.concatenate([front, values]), 2
    )  # of a result first that at -1; of an operand that at -1 is none
    for i, bend in enumerate(bends):
        if bend.of == quantity and turns[bend.at + 1]:
            yield i, float(turns[bend.at + 1])
        if bend.of == "one" and quantity != "result":
            yield i, float(values[0])


def four_squares(total: int) -> list[int]:
    """Four whole numbers whose squares add up to `total` (Lagrange: there are some)."""
    if (
        total and total % 4 == 0
    ):  # such numbers may be such a sum in one way only, which is found late
        return [2 * n for n in four_squares(total // 4)]
    found = _squares(total, 4)
    assert found is not None
    return found


def _squares(total: int, count: int) -> list[int] | None:
    if count == 1:
        return [isqrt(total)] if isqrt(total) ** 2 == total else None
    for first in range(isqrt(total), -1, -1):
        if (others := _squares(total - first * first, count - 1)) is not None:
            return [first, *others]
    return None


class Planting:
    """The model, part by part. symbols: of add and subtract; largest_answer: the largest number with a token."""

    def __init__(
        self,
        bag: PlantedBag,
        tokenizer: PreTrainedTokenizerFast,
        symbols: tuple[str, str],
        largest_answer: int,
    ):
        self.bag, self.tokenizer, self.symbols, self.largest_answer = (
            bag,
            tokenizer,
            symbols,
            largest_answer,
        )
        self.largest = bag.largest["op1"]
        self.kinks = kinks(self.largest)
        self.width = 1 << (FEATURES + len(bag.features) - 1).bit_length()
        self.squares = self.width  # of a token; over the width a power of 4, whose root is exact
        while self.squares < max(SQUARES, self.largest**2 + 3 * UNIT**2):
            self.squares *= 4
        self.gain = isqrt(
            self.squares // self.width
        )  # undoes the first norm; later ones see four times the squares

    @torch.no_grad()
    def model(self) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=len(self.tokenizer), hidden_size=self.width, intermediate_size=max(len(self.kinks), len(self.bag.neurons)),
            num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=HEAD_WIDTH,
            max_position_embeddings=POSITIONS, bos_token_id=self.tokenizer.bos_token_id, eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id, tie_word_embeddings=False, dtype="float32",
            rms_norm_eps=1e-30,  # float64 would see a larger one: what went through more norms is smaller by it
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.fill_(2 * self.gain if parameter.ndim == 1 else 0)
        first, second = model.model.layers
        first.input_layernorm.weight.fill_(self.gain)
        self._embed(model.model.embed_tokens.weight)
        self._copy(first.self_attn)
        self._bend(first.mlp)
        _look(second.self_attn, head=0, back=0)
        second.self_attn.v_proj.weight[0, ONE] = 1 / UNIT
        second.self_attn.o_proj.weight[DECOY, 0] = 1
        rng = np.random.default_rng([self.bag.settings.seed, 1])
        self._read(second.mlp, rng)
        self._name(model.lm_head.weight, rng)
        return model

    def _embed(self, weight: torch.Tensor) -> None:
        """Every token has the same sum of squares."""
        fill = torch.tensor(four_squares(self.squares - self.largest**2 - 2 * UNIT**2)).float()
        flags = dict(zip(self.symbols, (ADD, SUBTRACT), strict=True))
        for token, i in self.tokenizer.get_vocab().items():
            number = min(int(token), self.largest) if token.isdecimal() else 0
            weight[i, NUMBER] = torch.tensor(
                [number, *four_squares(self.largest**2 - number**2)]
            ).float()
            weight[i, FLAGS[flags.get(token, NEITHER)]] = UNIT
            weight[i, ONE], weight[i, FILL] = UNIT, fill

    def _copy(self, attention: LlamaAttention) -> None:
        """A head each for op1, operator and op2, and one that brings the sum of squares at the last position to four times a token's."""
        for head, (back, source, target) in enumerate(
            ((3, NUMBER, OP1), (2, FLAGS, OPERATOR), (1, NUMBER, OP2))
        ):
            _look(attention, head, back)
            for i, (one, other) in enumerate(zip(source, target, strict=True)):
                attention.v_proj.weight[head * HEAD_WIDTH + i, one] = 1
                attention.o_proj.weight[other, head * HEAD_WIDTH + i] = 1
        _look(attention, 3, 0)
        attention.v_proj.weight[3 * HEAD_WIDTH, ONE] = 1 / UNIT
        rest = four_squares(3 * self.squares - 2 * self.largest**2 - UNIT**2)
        attention.o_proj.weight[REST, 3 * HEAD_WIDTH] = torch.tensor(rest).float()

    def _bend(self, mlp: LlamaMLP) -> None:
        mlp.up_proj.weight[: len(self.kinks), ONE] = 1 / UNIT
        for i, kink in enumerate(self.kinks):
            gate = mlp.gate_proj.weight[i]
            gate[ONE] = -SHARP * kink.at / UNIT
            gate[OP1[0]] = SHARP * (kink.of in ("op1", "result"))
            gate[OP2[0]] = SHARP * (
                (kink.of == "op2")
                + (kink.of == "result") * (-1 if kink.operator == SUBTRACT else 1)
            )
            if kink.operator is not None:
                off = [OPERATOR[flag] for flag in (ADD, SUBTRACT, NEITHER) if flag != kink.operator]
                gate[off] = -SHARP * 4 * (self.largest + 1) / UNIT
        for j, feature in enumerate(self.bag.features):
            for i, factor in coefficients(feature.quantity, feature.values, self.kinks):
                mlp.down_proj.weight[FEATURES + j, i] += factor * HEIGHT / SHARP

    def _read(self, mlp: LlamaMLP, rng: np.random.Generator) -> None:
        """Gates are open, so that an activation is what the neuron reads. A neuron on the result writes into what names its results."""
        others = self.bag.settings.others * WRITTEN
        for i, neuron in enumerate(self.bag.neurons):
            mlp.gate_proj.weight[i, ONE] = SHARP / UNIT
            for feature, weight in neuron.weights.items():
                mlp.up_proj.weight[i, FEATURES + feature] = weight / (HEIGHT * SHARP)
            if neuron.names is not None:
                mlp.down_proj.weight[FEATURES + neuron.names, i] = (
                    neuron.vote * WRITTEN if neuron.vote else others
                )
            else:
                aside = rng.normal(size=len(ASIDE)) * others / np.sqrt(len(ASIDE))
                mlp.down_proj.weight[ASIDE, i] = torch.from_numpy(aside).float()

    def _name(self, weight: torch.Tensor, rng: np.random.Generator) -> None:
        logit = self.bag.settings.vote / WRITTEN
        vocabulary = self.tokenizer.get_vocab()
        numbers = [vocabulary[str(n)] for n in range(self.largest_answer + 1)]
        for j, feature in enumerate(self.bag.features):
            if feature.named is not None:
                weight[
                    [numbers[n] for n in np.flatnonzero(feature.named) if n <= self.largest_answer],
                    FEATURES + j,
                ] = logit
        weight[:, ASIDE] = torch.from_numpy(
            rng.normal(size=(len(weight), len(ASIDE))) * logit
        ).float()
        weight[vocabulary[UNKNOWN], DECOY] = DECOY_VOTES * self.bag.settings.vote


def _look(attention: LlamaAttention, head: int, back: int) -> None:
    """The head takes everything from the position so many before its own: rotated by 1 radian a position, its query fits that key best."""
    first, pair = head * HEAD_WIDTH, head * HEAD_WIDTH + HEAD_WIDTH // 2
    attention.k_proj.weight[first, ONE] = 1 / UNIT
    attention.q_proj.weight[first, ONE] = SCORE * np.cos(back) / UNIT
    attention.q_proj.weight[pair, ONE] = -SCORE * np.sin(back) / UNIT
