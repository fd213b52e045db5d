"""Build, without training, a Llama whose second and last layer's neurons compute given functions.

The functions are of op1, op2 and the result of `op1 operator op2 =`.

* Layer 0's attention copies op1, the operator and op2 to the last position.
* Layer 0's MLP computes kinks, relu(s - r) for each integer r. Here s is op1, op2, op1 + op2 or
  op1 - op2, the last two under their operator alone. Any function of integers is a sum of kinks.
  Every feature has a dimension of the residual stream, to which the MLP writes this sum.
* A neuron of layer 1 reads features; its activation is their weighted sum.
* The unembedding of a number reads the features that are votes for it. Layer 1's attention writes
  the votes for the unknown token.

For prompts of this form, every value is an integer or a binary fraction that float32 represents
exactly. So are the norms: each number comes with four integers whose squares complete its own to
the same sum for every number.
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
# Dimensions of the residual stream. A number takes five: its value, and four that complete its
# square. An operator is one of three flags. FILL completes a token's squares.
NUMBER, FLAGS, ONE, FILL = range(0, 5), range(5, 8), 8, range(9, 13)
# Copies at the last position, which layer 0 writes. REST completes their squares.
OP1, OPERATOR, OP2, REST = range(13, 18), range(18, 21), range(21, 26), range(26, 30)
# Votes for the unknown token; directions that are no votes; the first feature.
DECOY, ASIDE, FEATURES = 30, range(31, 47), 47
ADD, SUBTRACT, NEITHER = range(3)  # flags
UNIT = 16  # the value of the constant ONE and of a flag
SHARP = 64  # silu(SHARP x) is SHARP relu(x) at integers x, up to 1e-26
HEIGHT = 1 / 16  # of a feature in the residual stream: so small that the norm does not change
WRITTEN = 32  # what one vote adds to the residual stream
DECOY_VOTES = 1.5  # between a correct answer's two votes and the one left after an ablation
HEADS, HEAD_WIDTH = 4, 16
SCORE = 1024  # an attention score that leaves nothing for other positions
SQUARES = 1 << 17  # least sum of squares of a token: neurons' outputs must hardly change the norm
POSITIONS = 128


@dataclass(frozen=True)
class Kink:
    """A neuron of layer 0, relu(s - at).

    quantity: of s: op1, op2, result, or constant for relu(0 - at); operator: the flag under which
    alone the neuron is active, for results.
    """

    quantity: str
    at: int
    operator: int | None = None


def kinks(largest: int) -> list[Kink]:
    """Return the kinks for all functions of operands 0 to `largest` and of results."""
    bends = [Kink("constant", -1)]
    for operand in ("op1", "op2"):
        bends += [Kink(operand, at) for at in range(largest)]
    for operator, end in ((ADD, 2 * largest), (SUBTRACT, largest)):
        bends += [Kink("result", at, operator) for at in range(-1, end)]
    return bends


def coefficients(
    quantity: str,
    values: np.ndarray,
    bends: list[Kink],
) -> Iterator[tuple[int, float]]:
    """Yield (index of a kink, its factor), such that their sum is values[n] at n = 0, 1, ….

    The sum is 0 at results below 0.
    """
    # A result's first turn is at -1. An operand has none there: the constant is its value at 0.
    before = [0.0, 0.0] if quantity == "result" else [values[0], values[0]]
    turns = np.diff(np.concatenate([before, values]), 2)
    for i, bend in enumerate(bends):
        if bend.quantity == quantity and turns[bend.at + 1]:
            yield i, float(turns[bend.at + 1])
        if bend.quantity == "constant" and quantity != "result":
            yield i, float(values[0])


def four_squares(total: int) -> list[int]:
    """Return four integers whose squares add up to `total`, which exist (Lagrange)."""
    if total and total % 4 == 0:  # there may be only one such sum, which a search finds late
        return [2 * n for n in four_squares(total // 4)]
    squares = _squares(total, 4)
    assert squares is not None
    return squares


def _squares(total: int, count: int) -> list[int] | None:
    """Return `count` integers whose squares add up to `total`, or None if there are none."""
    if count == 1:
        root = isqrt(total)
        return [root] if root**2 == total else None
    for first in range(isqrt(total), -1, -1):
        others = _squares(total - first * first, count - 1)
        if others is not None:
            return [first, *others]
    return None


class Planting:
    """Builds the model, part by part.

    symbols: of add and subtract; largest_answer: the largest number with a token.
    """

    def __init__(
        self,
        bag: PlantedBag,
        tokenizer: PreTrainedTokenizerFast,
        symbols: tuple[str, str],
        largest_answer: int,
    ):
        self.bag, self.tokenizer, self.symbols = bag, tokenizer, symbols
        self.largest_answer, self.largest = largest_answer, bag.largest["op1"]
        self.kinks = kinks(self.largest)
        self.width = 1 << (FEATURES + len(bag.features) - 1).bit_length()
        # The sum of squares of a token. Over the width it is a power of 4, whose root is exact.
        self.grids = self.width
        while self.grids < max(SQUARES, self.largest**2 + 3 * UNIT**2):
            self.grids *= 4
        # The gain undoes the first norm. Later norms see four times the squares.
        self.gain = isqrt(self.grids // self.width)

    @torch.no_grad()
    def model(self) -> LlamaForCausalLM:
        """Return the model, in float32."""
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=self.width,
            intermediate_size=max(len(self.kinks), len(self.bag.neurons)),
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=HEAD_WIDTH,
            max_position_embeddings=POSITIONS,
            bos_token_id=self.tokenizer.bos_token_id,
            eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id,
            tie_word_embeddings=False,
            dtype="float32",
            rms_norm_eps=1e-30,  # a larger one would make values a bit smaller at each norm
        )
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
        """Write the embedding. Every token has the same sum of squares."""
        fill = torch.tensor(four_squares(self.grids - self.largest**2 - 2 * UNIT**2)).float()
        flags = dict(zip(self.symbols, (ADD, SUBTRACT), strict=True))
        for token, i in self.tokenizer.get_vocab().items():
            number = min(int(token), self.largest) if token.isdecimal() else 0
            completing = four_squares(self.largest**2 - number**2)
            weight[i, NUMBER] = torch.tensor([number, *completing]).float()
            weight[i, FLAGS[flags.get(token, NEITHER)]] = UNIT
            weight[i, ONE], weight[i, FILL] = UNIT, fill

    def _copy(self, attention: LlamaAttention) -> None:
        """Write layer 0's heads: one each copies op1, the operator and op2 to the last position.

        The fourth makes the sum of squares at the last position four times that of a token.
        """
        copies = ((3, NUMBER, OP1), (2, FLAGS, OPERATOR), (1, NUMBER, OP2))
        for head, (back, source, target) in enumerate(copies):
            _look(attention, head, back)
            columns = range(head * HEAD_WIDTH, head * HEAD_WIDTH + len(source))
            attention.v_proj.weight[columns, source] = 1
            attention.o_proj.weight[target, columns] = 1
        _look(attention, 3, 0)
        attention.v_proj.weight[3 * HEAD_WIDTH, ONE] = 1 / UNIT
        rest = four_squares(3 * self.grids - 2 * self.largest**2 - UNIT**2)
        attention.o_proj.weight[REST, 3 * HEAD_WIDTH] = torch.tensor(rest).float()

    def _bend(self, mlp: LlamaMLP) -> None:
        """Write layer 0's MLP: its neurons are the kinks, and it writes the features."""
        mlp.up_proj.weight[: len(self.kinks), ONE] = 1 / UNIT
        for i, kink in enumerate(self.kinks):
            gate = mlp.gate_proj.weight[i]
            gate[ONE] = -SHARP * kink.at / UNIT
            if kink.quantity in ("op1", "result"):
                gate[OP1[0]] = SHARP
            if kink.quantity in ("op2", "result"):
                gate[OP2[0]] = -SHARP if kink.operator == SUBTRACT else SHARP
            if kink.operator is not None:
                off = {ADD, SUBTRACT, NEITHER} - {kink.operator}
                gate[[OPERATOR[flag] for flag in off]] = -SHARP * 4 * (self.largest + 1) / UNIT
        for j, feature in enumerate(self.bag.features):
            for i, factor in coefficients(feature.quantity, feature.values, self.kinks):
                mlp.down_proj.weight[FEATURES + j, i] += factor * HEIGHT / SHARP

    def _read(self, mlp: LlamaMLP, rng: np.random.Generator) -> None:
        """Write layer 1's MLP, the planted neurons.

        Gates are open, so that an activation is the sum that the neuron reads. A neuron of a
        feature of the result votes for its results; others write to directions that are no votes.
        """
        others = self.bag.settings.others * WRITTEN
        for i, neuron in enumerate(self.bag.neurons):
            mlp.gate_proj.weight[i, ONE] = SHARP / UNIT
            for feature, weight in neuron.weights.items():
                mlp.up_proj.weight[i, FEATURES + feature] = weight / (HEIGHT * SHARP)
            if neuron.names is not None:
                output = neuron.vote * WRITTEN or others
                mlp.down_proj.weight[FEATURES + neuron.names, i] = output
            else:
                aside = rng.normal(size=len(ASIDE)) * others / np.sqrt(len(ASIDE))
                mlp.down_proj.weight[ASIDE, i] = torch.from_numpy(aside).float()

    def _name(self, weight: torch.Tensor, rng: np.random.Generator) -> None:
        """Write the unembedding: votes become logits."""
        logit = self.bag.settings.vote / WRITTEN
        vocabulary = self.tokenizer.get_vocab()
        tokens = np.array([vocabulary[str(n)] for n in range(self.largest_answer + 1)])
        for j, feature in enumerate(self.bag.features):
            if feature.named is not None:
                named = np.flatnonzero(feature.named[: len(tokens)])
                weight[tokens[named], FEATURES + j] = logit
        aside = rng.normal(size=(len(weight), len(ASIDE))) * logit
        weight[:, ASIDE] = torch.from_numpy(aside).float()
        weight[vocabulary[UNKNOWN], DECOY] = DECOY_VOTES * self.bag.settings.vote


def _look(attention: LlamaAttention, head: int, back: int) -> None:
    """Make a head attend to the position that is `back` before its own, and to no other.

    Rotary embeddings turn by 1 radian per position, and the query fits the key there best.
    """
    first, pair = head * HEAD_WIDTH, head * HEAD_WIDTH + HEAD_WIDTH // 2
    attention.k_proj.weight[first, ONE] = 1 / UNIT
    attention.q_proj.weight[first, ONE] = SCORE * np.cos(back) / UNIT
    attention.q_proj.weight[pair, ONE] = -SCORE * np.sin(back) / UNIT
