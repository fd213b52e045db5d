"""A model shaped like real ones goes through every chapter: deep, digits as tokens, solved examples.

Its weights are random, except that its unembedding favours digits, so that it answers some prompts
by chance. What is tested is that each stage ends well, and that the page is written.
"""

from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests import vocabularies
from tests.conftest import MAKE, run_in
from tests.micro import SETTINGS, copy_project, merged

LAYERS, VOCABULARY = 12, 50_000
EXAMPLES = "5+3=8\n24-8=16\n7*6=42\n84/4=21\n"
DIGITS = 10


def saved(folder: Path) -> None:
    """A random Llama with a digit tokenizer, whose digits have large logits."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, max_position_embeddings=128, tie_word_embeddings=False,
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
    """A project in which `make model` took this model through every chapter."""
    entry = {
        "source": "models/deep", "revision": "random", "dtype": "float32",
        "template": EXAMPLES + "{op1}{symbol}{op2}=", "answer_token": 0, "largest_operand": 19,
    }  # fmt: skip
    templates = {"arithmetic": 1, "number_words": 0, "three_operands": 0, "retrieval": 0, "factual": 1}
    few = {"patched_neurons": 6, "pairs_per_split": 4, "pairs_per_template": templates}
    settings = merged(SETTINGS, {"subjects": {"deep": entry}, "sizes": {"deep": few}})
    folder = copy_project(tmp_path_factory.mktemp("deep") / "project", settings)
    saved(folder / "models/deep")
    run_in(folder, *MAKE, "model", "NAME=deep")
    return folder


def test_every_chapter_has_its_tables_and_the_page_is_written(project: Path):
    page = (project / "reports/deep/index.html").read_text()
    assert "deep" in page
    for chapter in ("store", "circuit", "neurons", "heuristics", "bag", "mediation", "theories", "claims"):
        tables = list((project / "data/deep" / chapter).glob("*.parquet"))
        assert tables, chapter
    late = pl.read_parquet(project / "data/deep/circuit/late_layers.parquet")
    assert late["layers"].item() == LAYERS
