"""Fine-tuning uses one task, no held-out prompts, and leaves its source as it is.

Its bytes are the same with and without interruptions.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from stages.corpus.prompts import Corpus
from stages.corpus.settings import Tasks
from stages.lib.core import settings as sections
from stages.lib.model import tokenizer as tokenizers
from stages.subjects import finetune
from stages.subjects.settings import load_finetuning
from tests.conftest import SIZES, random_model
from tests.mediation.paired import tables, tokenizer
from tests.micro import SHIPPED, TUNED, changed, merged
from tests.subjects.grown import digests

SMALL = {
    "steps": 40,
    "batch": 48,
    "warmup_steps": 4,
    "learning_rate": 0.01,
    "evaluate_every": 10,
    "evaluation_prompts": 50,
}
TASKS = sections.check(
    Tasks, merged(SHIPPED["tasks"], {"largest_operand_of_three": 6, "held_out_percent": 30})
)
OUTPUTS = ("data/models/new", "data/new")


def project(folder: Path, source: Path, **settings: Any) -> Path:
    """A folder in which the stage fine-tunes the model in `source` to the model `new`."""
    entry = changed({})["finetune"][TUNED] | SMALL
    entry |= {"source": str(source), "precision": "float32", "threads": 1} | settings
    (folder / "data/corpus").mkdir(parents=True)
    params = {"finetune": {"new": entry}, "tasks": TASKS.model_dump()}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    for name, table in tables().items():
        table.write_parquet(folder / f"data/corpus/{name}.parquet")
    return folder


def outputs(folder: Path) -> list[dict[str, str]]:
    return [digests(folder / name) for name in OUTPUTS]


def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Run the stage in a folder without outputs, and return the digests of what it writes."""
    monkeypatch.chdir(folder)
    for name in OUTPUTS:
        shutil.rmtree(folder / name, ignore_errors=True)
    finetune.main("new")
    assert not list(folder.rglob("*.partial"))
    return outputs(folder)


def examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> finetune.FinetuneExamples:
    monkeypatch.chdir(folder)
    return finetune.FinetuneExamples("new", load_finetuning("new"), TASKS, *tables().values())


def prompts(batch: Any) -> list[tuple[list[int], int]]:
    """Return the tokens of each prompt, and its answer, which is one token."""
    answered = []
    for tokens, targets in batch:
        ends = (targets >= 0).argmax(1)
        for row, end, answer in zip(tokens, ends, targets.max(1).tolist(), strict=True):
            answered.append((row[: end + 1].tolist(), answer))
    return answered


@pytest.mark.parametrize("kind", ["llama-tied", "gptj", "neox-sequential"])
def test_any_architecture_learns_and_its_source_stays(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = digests(checkpoint_folder)
    folder = project(tmp_path / "project", checkpoint_folder)
    first = made(folder, monkeypatch)
    assert digests(checkpoint_folder) == before
    log = pl.read_parquet(folder / "data/new/subjects/finetune_log.parquet")
    assert log.columns == ["step", "loss", "learning_rate", "train", "held_out"]
    assert log["step"].to_list() == [0, 10, 20, 30, 40]
    losses = log["loss"].to_list()
    assert np.isnan(losses[0])
    assert losses[-1] < losses[1] - 0.1
    assert log["train"][-1] > log["train"][0]
    old = load_file(checkpoint_folder / "model.safetensors")
    new = load_file(folder / "data/models/new/model.safetensors")
    assert new.keys() == old.keys()
    for name, before_training in old.items():
        assert (new[name].dtype, new[name].shape) == (before_training.dtype, before_training.shape)
        if before_training.ndim > 1:
            assert not torch.equal(new[name], before_training)
    assert made(folder, monkeypatch) == first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_stored_as_in_the_source_and_are_those_of_the_log(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    random_model("llama").to(dtype).save_pretrained(tmp_path / "llama")
    tokenizer("signs").save_pretrained(tmp_path / "llama")
    folder = project(tmp_path / "project", tmp_path / "llama", evaluation_prompts=200)
    made(folder, monkeypatch)
    log = pl.read_parquet(folder / "data/new/subjects/finetune_log.parquet")
    model = AutoModelForCausalLM.from_pretrained(folder / "data/models/new", dtype="auto")
    assert model.dtype == dtype
    model, correct = model.float(), []
    for tokens, answer in prompts(examples(folder, monkeypatch).evaluation["train"]):
        correct.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()) == answer)
    accuracy = np.mean(correct)  # the log's was measured before the weights were rounded
    assert accuracy == pytest.approx(log["train"][-1], abs=0.1)
    assert accuracy > log["train"][0]


def corpus(split: str | None) -> Corpus:
    return Corpus(TASKS, *tables().values(), np.ones(len(tables()["cells"])), split)


def test_held_out_prompts_are_never_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer("signs").save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model"), monkeypatch)
    rng = np.random.default_rng(3)
    known = corpus(None).draw("three_operands", 40000, rng)
    splits = {tuple(given.tokenizer(p.prompt)["input_ids"]): p.split for p in known}  # BOS included
    held_out = [*splits.values()].count("held-out") / len(splits)
    assert 0.2 < held_out < 0.4
    trained: set[tuple[int, ...]] = set()
    for step in range(60):
        trained |= {tuple(tokens) for tokens, _ in prompts(given.of_step(step))}
    assert len(trained) > 1000
    assert {splits[tokens] for tokens in trained} == {"train"}
    for name, split in (("train", "train"), ("held_out", "held-out")):
        measured = [splits[tuple(tokens)] for tokens, _ in prompts(given.evaluation[name])]
        assert measured == [split] * 50


def test_answers_of_several_tokens_are_left_out_and_batches_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = tokenizer("pieces")
    own.save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model", bos=False), monkeypatch)
    drawn = corpus("train").draw("three_operands", 500, np.random.default_rng(0))
    assert any(len(own(f" {p.answer}")["input_ids"]) > 1 for p in drawn)
    for step in range(5):
        batch = prompts(given.of_step(step))
        assert len(batch) == SMALL["batch"]
        for tokens, answer in batch:
            prompt, _, result = own.decode([*tokens, answer]).partition("=")
            assert eval(prompt.replace("/", "//")) == int(result)
            assert result.strip() == own.decode([answer]).strip()


def test_facts_are_learnt_though_none_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer("word").save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model", task="factual"), monkeypatch)
    assert list(given.evaluation) == ["train"]


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A model with a dropout of 0.3."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout=0.3,
        attention_dropout=0.3,
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
    tokenizers.build(99, ["+ - * / = ( )"]).save_pretrained(tmp_path / "neox")
    return tmp_path / "neox"


@pytest.mark.parametrize("interrupted_at", [7, 10])
def test_interrupted_within_a_step_it_continues_to_the_same_bytes(
    interrupted_at: int, forgetful: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = project(tmp_path / "project", forgetful)
    expected = made(folder, monkeypatch)
    steps: list[int] = []
    whole = torch.optim.AdamW.zero_grad

    def counted(self: torch.optim.AdamW) -> None:
        """Interrupt where the weights have changed, and the run does not count the step yet."""
        steps.append(1)
        if len(steps) == interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)
        whole(self)

    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", counted)
    message = rf"at step {interrupted_at}; the same command continues from there"
    with pytest.raises(SystemExit, match=message):
        made(folder, monkeypatch)
    assert not any((folder / name).exists() for name in OUTPUTS)
    torch.manual_seed(99)
    finetune.main("new")
    assert outputs(folder) == expected
    assert len(steps) == SMALL["steps"]


def test_a_state_is_not_used_for_another_source(
    forgetful: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project(tmp_path / "project", forgetful))
    settings, before = load_finetuning("new"), finetune._key(load_finetuning("new"), TASKS)
    assert finetune._key(settings, TASKS) == before
    random_model("llama").save_pretrained(forgetful)
    assert finetune._key(settings, TASKS) != before


def test_what_cannot_be_trained_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The tokenizer knows no entity of a fact, and there is no model.
    tokenizer("signs").save_pretrained(tmp_path / "model")
    monkeypatch.chdir(project(tmp_path / "project", tmp_path / "model", task="factual"))
    with pytest.raises(
        sections.ParamsError,
        match=r"finetune\.new: no answer to a prompt of factual is one token of .*model",
    ):
        finetune.main("new")
    with pytest.raises(sections.ParamsError, match=r"'old'; stages/subjects/params.yaml has new"):
        finetune.main("old")
    assert not Path("data/models").exists()


def test_a_tokenizer_without_bos_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tokenizers.build(99, ["+ - * / = ( )"])
    own.bos_token = None
    own.save_pretrained(tmp_path / "model")
    with pytest.raises(
        sections.ParamsError,
        match=r"finetune\.new\.bos is true, but the tokenizer of .*model has no BOS",
    ):
        examples(project(tmp_path / "project", tmp_path / "model", bos=True), monkeypatch)
