"""A model shaped like real ones goes through every chapter: deep, digits as tokens, solved examples.

Its weights are random, except that its unembedding favours digits, so that it answers some prompts
by chance. What is tested is that each stage ends well, and that the page is written.
"""

from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from tests import vocabularies
from tests.conftest import MAKE, run_in
from tests.micro import ROOT, SETTINGS, SHIPPED, copy_project

LAYERS, VOCABULARY = 12, 50_000
NEURONS, DIGITS = 24, 10


def saved(folder: Path) -> None:
    """A random Llama with a digit tokenizer, whose digits have large logits."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
        num_attention_heads=4, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokenizer = vocabularies.by_digit_with_blanks()
    digits = tokenizer.convert_tokens_to_ids([str(digit) for digit in range(DIGITS)])
    with torch.no_grad():
        model.lm_head.weight *= 0.01
        model.lm_head.weight[digits] = torch.randn(DIGITS, 32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which `make model` took this model through every chapter, on a small grid."""
    entry = yaml.safe_load((ROOT / "examples/qwen/entry.yaml").read_text()) | {
        "largest_operand": 19
    }
    entry |= {
        "source": "models/deep",
        "revision": "random",
        "runs": SHIPPED["runs"],
        "passes": SHIPPED["passes"],
    }
    entry["operators"] = ["add", "subtract"]
    templates = {
        "arithmetic": 1,
        "number_words": 0,
        "three_operands": 0,
        "retrieval": 0,
        "factual": 1,
    }
    sizes = entry.pop("sizes") | {
        "patched_neurons": 6, "sampled_neurons": 4, "pairs_per_split": 4,
        "pairs_per_template": templates, "single_heads": False,
    }  # fmt: skip
    own = {"subjects": {"deep": entry}, "sizes": {"deep": sizes}}
    settings = {section: SETTINGS[section] | own[section] for section in own}
    folder = copy_project(tmp_path_factory.mktemp("deep") / "project", SETTINGS | settings)
    saved(folder / "models/deep")
    run_in(folder, *MAKE, "model", "NAME=deep")
    return folder


def test_every_chapter_has_its_tables_and_the_page_is_written(project: Path):
    page = (project / "reports/deep/index.html").read_text()
    assert "deep" in page
    for chapter in ("store", "circuit", "neurons", "heuristics", "bag", "mediation", "theories"):
        assert list((project / "data/deep" / chapter).glob("*.parquet")), chapter
    late = pl.read_parquet(project / "data/deep/circuit/late_layers.parquet")
    assert late["layers"].item() == LAYERS


def test_attribution_chooses_what_is_patched_and_its_recall_is_estimated(project: Path):
    neurons = pl.read_parquet(project / "data/deep/neurons/neuron_effects.parquet")
    patched = neurons.filter(method="exact", layer=0, position="op1").group_by("operator").len()
    assert patched["len"].is_between(6, 10).all()
    assert (
        len(neurons.filter(method="attribution", layer=0, position="op1", operator="add"))
        == NEURONS
    )
    recall = pl.read_parquet(project / "data/deep/neurons/attribution_recall.parquet")
    assert recall["subject"].unique().to_list() == ["deep"]


def test_a_model_from_elsewhere_has_no_held_out_cells_and_is_asked_real_facts(project: Path):
    accuracy = pl.read_parquet(project / "data/deep/store/accuracy.parquet")
    assert accuracy["split"].unique().to_list() == ["all"]
    assert (accuracy["majority_accuracy"] > 0).all()
    pairs = pl.read_parquet(project / "data/deep/mediation/mediation_pairs.parquet")
    assert pairs.filter(task="arithmetic")["prompt"].str.contains("5 plus 3").any()
