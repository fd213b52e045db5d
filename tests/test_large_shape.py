"""A model with the shape of real models goes through every chapter.

It has more layers than the others of these tests, digits as tokens, solved examples in its prompts
and a large vocabulary. Its weights are random, but for the unembedding of digits, which is fitted
to the answers: so it predicts more of them than by chance, and its last layers are late. These
tests show that each stage ends well, and that the page is written. The stages that do not depend on
this model are those of the micro project.
"""

import re
from collections import defaultdict
from itertools import product
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stages.corpus.prompts import NUMBER_WORDS
from stages.lib.core.vocabulary import TASKS
from tests import vocabularies
from tests.conftest import MAKE, run_in
from tests.micro import ROOT, SETTINGS, SHIPPED, changed, write_settings

LAYERS, NEURONS, VOCABULARY = 12, 24, 50_000
OPERATORS = ["add", "subtract"]
TEMPLATE, LARGEST = "15+13=28\n{op1}{symbol}{op2}=", 19
LOGITS = 20.0  # of a digit that is predicted with certainty
RANDOM_HEAD_CIRCUITS = 3  # of each size; other models of these tests have 2


def words() -> str:
    """Return the words of all prompts but names of facts, and of numbers up to 19."""
    tasks = SHIPPED["tasks"]
    templates = [*tasks["arithmetic"], *tasks["retrieval"], *tasks["factual"].values()]
    signs = [" ".join(names.values()) for names in tasks["operators"].values()]
    texts = [*templates, *signs, *tasks["retrieval_things"], *NUMBER_WORDS[:20]]
    return " ".join(re.findall("[A-Za-z]+", re.sub(r"{\w+}", "", " ".join(texts))))


def save_model(folder: Path) -> None:
    """Write a random Llama with a digit tokenizer, whose logits of digits are fitted to answers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=NEURONS,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    tokenizer = vocabularies.by_digit_with_blanks(words())
    with torch.no_grad():
        model.lm_head.weight *= 0.01
        fit_digits(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def fit_digits(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Fit the unembedding of digits to the first digits of the answers, by least squares."""
    tokens, answers = defaultdict(list), defaultdict(list)  # by the number of tokens
    for op1, op2 in product(range(LARGEST + 1), repeat=2):
        for symbol, result in (("+", op1 + op2), ("-", op1 - op2)):
            if result >= 0:
                text = TEMPLATE.format(op1=op1, symbol=symbol, op2=op2)
                prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
                tokens[len(prompt)].append(prompt)
                answers[len(prompt)].append(int(str(result)[0]))
    states = [model.model(torch.tensor(prompts))[0][:, -1] for prompts in tokens.values()]
    first_digits = torch.cat(list(map(torch.tensor, answers.values())))
    wanted = torch.nn.functional.one_hot(first_digits, 10) - 0.1
    fitted = torch.linalg.lstsq(torch.cat(states), wanted).solution
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    model.lm_head.weight[digits] = LOGITS * fitted.T


@pytest.fixture
def deep_project(micro_copy: Path) -> Path:
    """The micro project after `make model` took this model through every chapter."""
    entry = yaml.safe_load((ROOT / "examples/qwen/entry.yaml").read_text())
    sizes = entry.pop("sizes") | {
        "patched_neurons": 6,
        "random_head_circuits": RANDOM_HEAD_CIRCUITS,
        "sampled_neurons": 4,
        "pairs_per_split": 4,
        "pairs_per_template": dict.fromkeys(TASKS, 1),
        "single_heads": False,
    }
    entry |= {
        "source": "models/deep",
        "revision": "random",
        "template": TEMPLATE,
        "operators": OPERATORS,
        "largest_operand": LARGEST,
        "runs": SHIPPED["runs"],
        "passes": SHIPPED["passes"],
    }
    settings = SETTINGS | {
        "subjects": SETTINGS["subjects"] | {"deep": entry},
        "sizes": SETTINGS["sizes"] | {"deep": sizes},
    }
    write_settings(micro_copy, changed(settings))
    save_model(micro_copy / "models/deep")
    run_in(micro_copy, *MAKE, "model", "NAME=deep")
    return micro_copy


# Tables without rows: they compare neurons of which more are patched.
EMPTY = {"attribution_agreement", "operator_overlaps"}
CHAPTERS = ("store", "circuit", "neurons", "heuristics", "bag", "mediation", "theories", "claims")


def test_a_model_of_real_shape_goes_through_every_chapter(deep_project: Path):
    page = (deep_project / "reports/deep/index.html").read_text()
    assert "deep" in page
    tables = deep_project / "data/deep"
    check_that_tables_have_rows(tables)
    late = pl.read_parquet(tables / "circuit/late_layers.parquet")
    assert late["layers"].item() == LAYERS
    assert late["first_layer"].item() is not None  # else nothing of late neurons would be tested
    check_that_its_own_number_of_circuits_is_drawn(tables / "circuit")
    check_that_attribution_chose_what_was_patched(tables / "neurons")
    check_that_nothing_was_held_out(tables)
    check_that_every_task_has_pairs(tables / "mediation")
    check_that_claims_were_tested(deep_project / "data/claims/claims/deep.parquet")


def check_that_tables_have_rows(folder: Path) -> None:
    for chapter in CHAPTERS:
        files = list((folder / chapter).glob("*.parquet"))
        assert files, chapter
        empty = {file.stem for file in files if not pl.read_parquet(file).height}
        assert empty <= EMPTY, chapter
        assert len(files) - len(empty) >= 3, chapter


def check_that_every_task_has_pairs(tables: Path) -> None:
    """The model is measured on the pairs of each task, with both operators where there are some."""
    pairs = pl.read_parquet(tables / "mediation_pairs.parquet")
    effects = pl.read_parquet(tables / "mediation_effects.parquet")
    assert {*pairs["task"]} == {*TASKS} == {*effects["task"]}
    for task in ("arithmetic", "number_words"):
        assert {*pairs.filter(task=task)["operator"]} == {*OPERATORS}


def check_that_claims_were_tested(table: Path) -> None:
    claims = pl.read_parquet(table)
    assert claims["claim"].n_unique() > 50
    tested = claims.filter(pl.col("verdict") != "not testable here")
    assert {*tested["verdict"]} == {"reproduced", "not reproduced"}
    assert {*OPERATORS} < {*tested["operator"]}


def check_that_its_own_number_of_circuits_is_drawn(tables: Path) -> None:
    interventions = pl.read_parquet(tables / "head_circuit_interventions.parquet")
    operators = interventions.filter(circuit="random").group_by("operator")
    drawn = dict(operators.agg(pl.col("seed").n_unique()).iter_rows())
    assert drawn == dict.fromkeys(OPERATORS, RANDOM_HEAD_CIRCUITS)


def check_that_attribution_chose_what_was_patched(tables: Path) -> None:
    neurons = pl.read_parquet(tables / "neuron_effects.parquet")
    first = neurons.filter(layer=0, position="op1")
    patched = first.filter(method="exact").group_by("operator").len()
    assert sorted(patched["operator"]) == OPERATORS
    assert patched["len"].is_between(6, 10).all()
    assert len(first.filter(method="attribution", operator="add")) == NEURONS
    recall = pl.read_parquet(tables / "attribution_recall.parquet")
    assert recall["subject"].unique().to_list() == ["deep"]


def check_that_nothing_was_held_out(tables: Path) -> None:
    """A model from elsewhere has no held-out cells, and gets real facts."""
    accuracy = pl.read_parquet(tables / "store/accuracy.parquet")
    assert accuracy["split"].unique().to_list() == ["all"]
    assert (accuracy["majority_accuracy"] > 0).all()
    pairs = pl.read_parquet(tables / "mediation/mediation_pairs.parquet")
    assert pairs.filter(task="arithmetic")["prompt"].str.contains("15 plus 13").any()
    assert pairs.filter(task="factual")["prompt"].str.contains("capital").any()
