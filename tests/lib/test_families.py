"""Test every family of transformers: exact or refused, as docs/families.md says.

Interventions in bfloat16 must be as exact as plain forward passes.
"""

import re

import pytest
import torch

from stages.lib.executor import naive
from stages.lib.executor.executor import Executor
from stages.lib.executor.interventions import Intervention
from stages.lib.executor.pairs import by_length
from stages.lib.model import agreement, architecture, checkpoint, search
from tests import families

OUTCOMES = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", families.PAGE.read_text(), re.MULTILINE))
AT_ONCE = 10


def kind(outcome: str) -> str:
    """Return a family's outcome without the layers and classes that it names."""
    return re.sub(r"\d+|\b\w*[a-z][A-Z]\w*", "…", outcome)


# A twentieth of the families, and one of each kind of outcome; the command that writes the page
# tries all.
OF_EACH_KIND = {kind(OUTCOMES[name]): name for name in families.NAMES}
TRIED = sorted({*families.NAMES[::20], *OF_EACH_KIND.values()})


def test_the_page_lists_every_family():
    assert list(OUTCOMES)[1:] == families.NAMES


@pytest.mark.parametrize("first", range(0, len(TRIED), AT_ONCE))
def test_the_outcome_of_a_family_is_on_the_page(first: int):
    for name, result in families.results(TRIED[first : first + AT_ONCE]):
        assert result.replace("|", "/") == OUTCOMES[name], name


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
def test_interventions_in_bfloat16_are_as_exact_as_plain_forward_passes(name: str):
    family, more = families.VARIANTS.get(name, (name, {}))
    wide = checkpoint.prepared(families.random_model(family, **more))
    narrow = checkpoint.prepared(families.random_model(family, **more).bfloat16())
    exact, fast = (Executor(loaded, None, 10**9, 1 << 30) for loaded in (wide, narrow))
    assert fast.shortcuts.additive == exact.shortcuts.additive
    [batch] = by_length(families.pairs(), 10)
    errors = plain_errors = 0.0
    for patch in families.patches(len(wide.architecture.layers)):
        intervention = Intervention(0, None, None, (patch,))
        expected = naive.logits(exact.fresh(batch), intervention)
        values = fast.fresh(batch)
        errors += _squared(fast.logits(values, intervention), expected)
        plain_errors += _squared(naive.logits(values, intervention), expected)
    assert errors <= 2 * plain_errors


def _squared(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits.float() - expected).square().sum())


def test_a_part_that_writes_besides_attention_and_mlp_is_detected():
    model = families.random_model("llama")
    block = model.model.layers[1]
    forward = block.forward
    block.forward = lambda x, **named: forward(x, **named) + 0.01 * x.roll(1, -1)
    with pytest.raises(
        architecture.ArchitectureError,
        match="layer 1: the output of LlamaDecoderLayer is not the sum",
    ):
        agreement.check(model, search.find(model))


def test_usual_attention_is_used_where_plain_attention_differs(capsys: pytest.CaptureFixture):
    checkpoint.prepared(families.random_model("falcon", alibi=True))
    message = "plain attention of FalconForCausalLM gives other logits than its usual attention"
    assert message in capsys.readouterr().err
