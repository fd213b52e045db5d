"""Training further: on one task, on nothing that is held out, to the same bytes whatever interrupts it, and with the source left alone."""

import hashlib
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
    """A folder in which the stage makes `new` from the model in `source`."""
    entry = (
        changed({})["finetune"][TUNED]
        | SMALL
        | {"source": str(source), "precision": "float32", "threads": 1}
        | settings
    )
    (folder / "data/corpus").mkdir(parents=True)
    (folder / "params.yaml").write_text(
        yaml.safe_dump({"finetune": {"new": entry}, "tasks": TASKS.model_dump()})
    )
    for name, table in tables().items():
        table.write_parquet(folder / f"data/corpus/{name}.parquet")
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The digests of all that the stage writes in this folder, which it then forgets."""
    monkeypatch.chdir(folder)
    for name in OUTPUTS:
        shutil.rmtree(folder / name, ignore_errors=True)
    finetune.main("new")
    assert not list(folder.rglob("*.partial"))
    return {file: digest for name in OUTPUTS for file, digest in digests(folder / name).items()}


def examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> finetune.FinetuneExamples:
    monkeypatch.chdir(folder)
    return finetune.FinetuneExamples("new", load_finetuning("new"), TASKS, *tables().values())


def prompts(batch: Any) -> list[tuple[list[int], int]]:
    """Each prompt up to where its answer, of one token, is asked for; and that answer."""
    places = [
        (row, targets, int((targets >= 0).argmax()))
        for group in batch
        for row, targets in zip(*group, strict=True)
    ]
    return [(row[: place + 1].tolist(), int(targets[place])) for row, targets, place in places]


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
    old, new = (
        load_file(checkpoint_folder / "model.safetensors"),
        load_file(folder / "data/models/new/model.safetensors"),
    )
    assert {n: (t.dtype, t.shape) for n, t in new.items()} == {
        n: (t.dtype, t.shape) for n, t in old.items()
    }
    assert not any(torch.equal(new[n], t) for n, t in old.items() if t.ndim > 1)
    assert made(folder, monkeypatch) == first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_stored_as_in_the_source_and_are_those_of_the_log(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    random_model("llama").to(dtype).save_pretrained(tmp_path / "llama")
    tokenizer("signs").save_pretrained(tmp_path / "llama")
    folder = project(
        tmp_path / "project", tmp_path / "llama", precision="float32", evaluation_prompts=200
    )
    made(folder, monkeypatch)
    log = pl.read_parquet(folder / "data/new/subjects/finetune_log.parquet")
    model = AutoModelForCausalLM.from_pretrained(folder / "data/models/new", dtype="auto")
    assert model.dtype == dtype
    asked = prompts(examples(folder, monkeypatch).evaluation["train"])
    right = [
        int(model.float()(torch.tensor([tokens])).logits[0, -1].argmax()) == answer
        for tokens, answer in asked
    ]
    assert np.mean(right) == pytest.approx(
        log["train"][-1], abs=0.1
    )  # which was measured before the weights were rounded
    assert np.mean(right) > log["train"][0]


def test_held_out_prompts_are_never_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer("signs").save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model"), monkeypatch)
    rng = np.random.default_rng(3)
    known = Corpus(TASKS, *tables().values(), np.ones(len(tables()["cells"])), None).draw(
        "three_operands", 40000, rng
    )
    splits = {tuple(given.tokenizer(p.prompt)["input_ids"]): p.split for p in known}  # BOS included
    assert 0.2 < np.mean([split == "held-out" for split in splits.values()]) < 0.4
    trained = {tuple(tokens) for step in range(60) for tokens, _ in prompts(given.of_step(step))}
    assert len(trained) > 1000
    assert {splits[tokens] for tokens in trained} == {"train"}
    measured = {
        name: {splits[tuple(tokens)] for tokens, _ in prompts(batch)}
        for name, batch in given.evaluation.items()
    }
    assert measured == {"train": {"train"}, "held_out": {"held-out"}}
    assert [len(prompts(batch)) for batch in given.evaluation.values()] == [50, 50]


def test_answers_of_several_tokens_are_left_out_and_batches_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = tokenizer("pieces")
    own.save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model", bos=False), monkeypatch)
    drawn = Corpus(TASKS, *tables().values(), np.ones(len(tables()["cells"])), "train").draw(
        "three_operands", 500, np.random.default_rng(0)
    )
    assert any(len(own(f" {p.answer}")["input_ids"]) > 1 for p in drawn)
    for step in range(5):
        found = prompts(given.of_step(step))
        assert len(found) == SMALL["batch"]
        for tokens, answer in found:
            prompt, _, result = own.decode([*tokens, answer]).partition("=")
            assert eval(prompt.replace("/", "//")) == int(result)
            assert result.strip() == own.decode([answer]).strip()


def test_facts_are_learnt_though_none_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer("word").save_pretrained(tmp_path / "model")
    given = examples(project(tmp_path / "project", tmp_path / "model", task="factual"), monkeypatch)
    assert list(given.evaluation) == ["train"]


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A model that would drop out a third of everything in training."""
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
def test_interrupted_amid_a_step_it_goes_on_to_the_same_bytes(
    interrupted_at: int, forgetful: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = project(tmp_path / "project", forgetful)
    expected = made(folder, monkeypatch)
    steps: list[int] = []
    whole = torch.optim.AdamW.zero_grad

    def counted(self: torch.optim.AdamW) -> None:
        """The weights have changed, and the run does not count the step yet."""
        steps.append(1)
        if len(steps) == interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)
        whole(self)

    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", counted)
    with pytest.raises(
        SystemExit, match=rf"at step {interrupted_at}; the same command continues from there"
    ):
        made(folder, monkeypatch)
    assert not any((folder / name).exists() for name in OUTPUTS)
    torch.manual_seed(99)
    finetune.main("new")
    assert {
        file: digest for name in OUTPUTS for file, digest in digests(folder / name).items()
    } == expected
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
    tokenizer("signs").save_pretrained(
        tmp_path / "model"
    )  # which knows no entity of a fact; there is no model beside it
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
