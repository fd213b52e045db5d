"""Steering finds what is planted: a model adds with neurons for the ones, the tens and the carry.

The model is built, not trained. Layer 0 gives every sum of two operands features: the ones digit,
the tens digits' sum, the carry, and noise. A few neurons of layer 1 read the first three. The
logit of a number is largest if they agree with its digits. All other neurons read noise, and write
nothing.
"""

from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages.bag import digit_means, steering_given
from stages.lib.core.tables import write_table
from stages.lib.executor import runs
from stages.lib.model import tokenizer as tokenizers
from stages.lib.sql import stage as query
from stages.lib.subject import Subject
from stages.store import architecture, dump, prompts
from tests.micro import SETTINGS, alone, begin_project, changed, merged

LARGEST, COPIES, NOISE = 19, 4, 8
OPERANDS = LARGEST + 1
SUMS = list(combinations_with_replacement(range(OPERANDS), 2))
NEURONS = len(SUMS)
WIDTH = 128
# Dimensions of the residual stream. BIG is so large that norms hardly differ between prompts.
NUMBER, COPY = range(OPERANDS), range(20, 20 + OPERANDS)
BIG, FEATURES, OUTPUT, ASIDE = 40, range(41, 53 + NOISE), range(70, 82), 90
ONES, TENS, CARRY = range(10), 10, 11  # features, and outputs
SIZE, SHARP = 100.0, 400.0
MICRO = {
    "cells": {"largest_operand": LARGEST, "largest_answer": 2 * LARGEST},
    "pairs": {"pairs_per_split": 20, "seeds": [0, 1]},
    "steering": {"steered_neurons": [COPIES, 2 * COPIES, 10], "steering_draws": 2},
}


@torch.no_grad()
def adding_model(vocabulary: dict[str, int]) -> LlamaForCausalLM:
    """Return the model, whose answers to all sums are correct."""
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        intermediate_size=NEURONS,
        num_hidden_layers=2,
        num_attention_heads=1,
        head_dim=WIDTH,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        # norms undo the division by the root mean square, which is that of BIG
        parameter.fill_(SIZE / WIDTH**0.5 if parameter.ndim == 1 else 0)
    for token, i in vocabulary.items():
        model.model.embed_tokens.weight[i, BIG] = SIZE
        if token.isdecimal() and int(token) <= LARGEST:
            model.model.embed_tokens.weight[i, NUMBER[int(token)]] = 1
    first, second = model.model.layers
    for source, target in zip(NUMBER, COPY, strict=True):
        # each position attends to all before it: a quarter of the weight is on each operand
        first.self_attn.v_proj.weight[source, source] = 4
        first.self_attn.o_proj.weight[target, source] = 1
    # layer 1's attention raises the symbol's logit a little; the pipeline refuses idle attention
    second.self_attn.v_proj.weight[0, BIG] = 1
    second.self_attn.o_proj.weight[ASIDE, 0] = 1 / SIZE
    model.lm_head.weight[vocabulary["+"], ASIDE] = 1
    random = np.random.default_rng(0)
    _know_sums(first.mlp, random)
    _add(second.mlp, random)
    for number in range(2 * LARGEST + 1):
        ones, tens = number % 10, number // 10
        row = model.lm_head.weight[vocabulary[str(number)]]
        row[OUTPUT[ones]] = 30
        # -(tens - written)^2, without what all numbers share
        row[OUTPUT[TENS]] = row[OUTPUT[CARRY]] = 20 * tens
        row[BIG] = -10 * tens * tens / SIZE
    return model


def _know_sums(mlp: torch.nn.Module, random: np.random.Generator) -> None:
    """Write layer 0: one neuron for each sum, which writes its features."""
    for neuron, (small, large) in enumerate(SUMS):
        mlp.gate_proj.weight[neuron, COPY[small]] = SHARP
        mlp.gate_proj.weight[neuron, BIG] = -SHARP * (1.5 if small == large else 0.5) / SIZE
        mlp.up_proj.weight[neuron, COPY[large]] = 1 / (SHARP * (1 if small == large else 0.5))
        features = np.zeros(len(FEATURES))
        features[(small + large) % 10] = 1
        features[TENS] = small // 10 + large // 10
        features[CARRY] = small % 10 + large % 10 >= 10
        features[CARRY + 1 :] = random.normal(size=NOISE)
        mlp.down_proj.weight[FEATURES, neuron] = torch.tensor(features, dtype=torch.float32)


def _add(mlp: torch.nn.Module, random: np.random.Generator) -> None:
    """Write layer 1: neurons for each feature, COPIES each for tens and carry, and noise."""
    mlp.gate_proj.weight[:, BIG] = 1  # open: silu(SIZE) is SIZE
    read = [*ONES, *[TENS] * COPIES, *[CARRY] * COPIES]
    for neuron, feature in enumerate(read):
        copies = 1 if feature in ONES else COPIES
        mlp.up_proj.weight[neuron, FEATURES[feature]] = 1 / SIZE
        mlp.down_proj.weight[OUTPUT[feature], neuron] = 1 / copies
    noise = random.normal(size=(NEURONS - len(read), NOISE))
    mlp.up_proj.weight[len(read) :, FEATURES[CARRY + 1 :]] = torch.from_numpy(noise).float()


@pytest.fixture
def steered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    """Return the table `steering` of this model."""
    own = tokenizers.build(2 * LARGEST, ["+ ="])
    adding_model(own.get_vocab()).save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    entry = {"source": "model", "dtype": "float32", "operators": ["add"], "bos": False}
    whole = changed(merged(SETTINGS, MICRO))
    entries = alone("m", **entry)["subjects"]
    whole |= dict.fromkeys(("subjects", "with_pairs", "known", "with_activations"), entries)
    begin_project(tmp_path, whole | {"sized": entries}, monkeypatch)
    query.main("corpus/cells")
    prompts.main("m")
    dump.main("m")
    architecture.main("m")
    subject = Subject.named("m")
    assert subject.table("store/predictions.parquet")["correct"].all()
    late = pl.DataFrame({"subject": ["m"], "first_layer": [1], "layers": [2]})
    integers = pl.col("first_layer", "layers").cast(pl.Int16)
    write_table(late.with_columns(integers), subject.path("circuit/late_layers.parquet"))
    for table in ("labels", "heuristic_neurons"):  # none: arms that need no labels
        schema = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32}
        schema |= {"heuristic": pl.String, "quantity": pl.String, "criterion": pl.String}
        empty = pl.DataFrame(schema=schema | {"subject": pl.String, "late": pl.Boolean})
        write_table(empty, subject.path(f"heuristics/{table}.parquet"))
    for stage in ("pairs", "component_interventions"):
        query.main(f"circuit/{stage}", "m")
    digit_means.main("m")
    for stage in ("matched_neurons", "steering_interventions"):
        query.main(f"bag/{stage}", "m")
    steering_given.main("m")
    runs.main("bag/steering", "m")
    query.main("bag/steering", "m")
    return subject.table("bag/steering.parquet")


def test_ones_tens_and_carries_follow_the_neurons_that_write_them(steered: pl.DataFrame):
    for place, neurons in (("ones", 10), ("tens", 2 * COPIES), ("carry", COPIES)):
        rows = steered.filter(place=place, neurons=neurons, target="other")
        follows = dict(rows.select("arm", "follows").iter_rows())
        assert follows == {"separating": 1, "random": pytest.approx(0, abs=0.1), "matched": 0}, (
            place
        )
        own = steered.filter(place=place, neurons=neurons, target="own", arm="separating")
        assert own["follows"].item() == 1
