"""Every family of transformers: exact against naive code or refused by name, as docs/families.md says; and few digits hide no structure."""

import re

import numpy as np
import pytest
import torch

from stages.lib.executor import naive
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention
from stages.lib.executor.pairs import by_length
from stages.lib.model import agreement, architecture, checkpoint, search
from tests import families

SAID = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", families.PAGE.read_text(), re.MULTILINE))
AT_ONCE = 20


def test_the_page_lists_every_family():
    assert list(SAID)[1:] == families.NAMES


@pytest.mark.parametrize("first", range(0, len(families.NAMES), AT_ONCE))
def test_what_happens_to_a_family_is_what_the_page_says(first: int):
    names = families.NAMES[first : first + AT_ONCE]
    found = {name: result.replace("|", "/") for name, result in families.results(names)}
    assert not [result for result in found.values() if result.startswith("WRONG")]
    assert found == {name: SAID[name] for name in names}


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "granite, scaled",
        "gemma2, no caps",
        "olmo2",
        "mixtral",
        "cohere, logits scaled",
        "qwen2_moe",
    ],
)
def test_interventions_in_bfloat16_are_as_near_to_the_truth_as_plain_ones(name: str):
    family, more = families.VARIANTS.get(name, (name, {}))
    truth, narrow = (
        checkpoint.prepared(families.random_model(family, **more).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    exact, few = (Executor(loaded, None, 10**9, 1 << 30) for loaded in (truth, narrow))
    assert few.additive == exact.additive
    [two] = by_length(families.pairs(), 10)
    errors = np.zeros(2)
    for patch in families.patches(len(truth.architecture.layers)):
        one = Intervention(0, None, None, (patch,))
        right = naive.logits(exact.fresh(two), one)
        values = few.fresh(two)
        errors += [
            float((way - right).square().sum())
            for way in (few.logits(values, one).float(), naive.logits(values, one).float())
        ]
    assert errors[0] <= 2 * errors[1]


def test_a_part_that_writes_besides_attention_and_mlp_is_seen():
    model = families.random_model("llama")
    block = model.model.layers[1]
    forward = block.forward
    block.forward = lambda x, **named: forward(x, **named) + 0.01 * x.roll(1, -1)
    with pytest.raises(
        architecture.ArchitectureError,
        match="layer 1: the output of LlamaDecoderLayer is not the sum",
    ):
        agreement.check(model, search.find(model))


def test_attention_that_plain_attention_is_not_is_left_as_it_is(capsys: pytest.CaptureFixture):
    checkpoint.prepared(families.random_model("falcon", alibi=True))
    assert (
        "plain attention of FalconForCausalLM gives other logits than its usual attention"
        in capsys.readouterr().err
    )
