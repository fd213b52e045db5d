"""Outlines of models have the sizes of large models, and the plans of models with weights."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import GPTNeoXConfig, LlamaConfig, Qwen2Config

from stages.lib.executor import executor, interventions
from stages.lib.executor.blocks import PassSizes
from stages.lib.executor.pairs import by_length
from stages.lib.model import checkpoint
from stages.lib.model.folder import ModelError
from stages.lib.subject import SubjectSettings
from tests.lib.test_executor import ROLES, intervention_table, pair_table
from tests.micro import ROOT, SHIPPED

LARGE = {  # as they stand on the Hub: configuration, (layers, neurons, heads, width)
    "Llama-3-8B": (LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=False,
    ), (32, 14336, 32, 4096)),
    "Llama-3-70B": (LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=False,
    ), (80, 28672, 64, 8192)),
    "Pythia-6.9B": (GPTNeoXConfig(
        hidden_size=4096, intermediate_size=16384, num_hidden_layers=32, num_attention_heads=32,
        vocab_size=50432, rotary_pct=0.25,
    ), (32, 16384, 32, 4096)),
}  # fmt: skip


def settings(source: Path, dtype: str = "float32") -> SubjectSettings:
    return SubjectSettings(
        **SHIPPED["subjects"]["abacus"] | {"source": str(source), "dtype": dtype}
    )


def test_large_models_are_planned_in_little_memory(tmp_path: Path):
    for name, (config, _) in LARGE.items():
        config.architectures = ["LlamaForCausalLM" if "Llama" in name else "GPTNeoXForCausalLM"]
        config.save_pretrained(tmp_path / name)
    code = """
import sys
from pathlib import Path
from tests.lib.test_outline import settings
from stages.lib.model import checkpoint
for folder in sys.argv[1:]:
    a = checkpoint.outline(settings(folder, "bfloat16")).architecture
    print(len(a.layers), a.neurons, a.heads, a.width)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
# getrusage's ru_maxrss would include the memory of the parent process
print(int(status["VmHWM"].split()[0]) >> 10)
"""
    folders = [str(tmp_path / name) for name in LARGE]
    done = subprocess.run(
        [sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True, cwd=ROOT
    )
    *lines, mib = done.stdout.splitlines()
    expected = [" ".join(map(str, sizes)) for _, sizes in LARGE.values()]
    assert lines == expected
    assert int(mib) < 1024


def test_the_plan_is_that_of_the_model_with_its_weights(checkpoint_folder: Path):
    loaded, outline = (
        checkpoint.load(checkpoint_folder, "float32", "cpu", 1),
        checkpoint.outline(settings(checkpoint_folder)),
    )
    table = pair_table(1, [(5, 5), (8, 8), (5, 8), (5, 5)])
    patch = {
        "component": "neuron",
        "layer": 1,
        "units": [2],
        "position": "last",
        "key_position": None,
        "replacement": "zero",
    }
    patches = []
    for layer in (0, 1):
        patches += [[patch | {"layer": layer, "units": [unit]}] for unit in range(20)]
    rows = interventions.read(
        intervention_table(patches, [None] * len(patches)), outline.architecture, ROLES
    )
    plans = [
        executor.Executor(loaded, None, 40, 1 << 28).plan(table, rows, 15),
        PassSizes(outline, 40, 1 << 28).plan(table, rows, 15),
    ]
    facts = []
    for plan in plans:
        blocks = []
        for block in plan:
            numbers = [intervention.number for intervention in block.interventions]
            blocks.append((block.pairs.number.tolist(), numbers))
        facts.append(blocks)
    assert len(facts[0]) > 3
    assert facts[0] == facts[1]


def test_a_large_vocabulary_leaves_passes_as_large():
    """Plan Qwen2.5-0.5B: passes have all rows of the settings, and logits of some rows at once."""
    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
    )
    sizes = PassSizes(checkpoint.outline_of(config, "float32"), 2000, 1024 << 20)
    [pairs] = by_length(pair_table(1, [(8, 8)] * 2), 2)
    assert sizes.copies(pairs, 7, shared=True) == 1000
    assert sizes.copies(pairs, 4) == 250
    assert sizes.logits() * 151_936 * 12 <= 256 << 20


def test_a_folder_without_a_model_is_said(tmp_path: Path):
    with pytest.raises(ModelError, match="no model folder at"):
        checkpoint.outline(settings(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="it has no config"):
        checkpoint.outline(settings(tmp_path))
