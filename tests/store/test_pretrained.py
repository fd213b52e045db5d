"""A pretrained model is asked for facts of the world and its own operands; it has no split."""

from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.corpus import real_tasks, tasks
from stages.lib.core.vocabulary import ARITHMETIC
from stages.lib.model import tokenizer
from stages.lib.origins import ORIGINS
from stages.lib.sql import stage as query
from stages.lib.subject import Subject
from stages.store import answer_accuracy, dump, prompts, task_predictions
from stages.subjects import origins
from tests import vocabularies
from tests.conftest import random_model
from tests.micro import SETTINGS, alone, begin_project, changed, merged

LARGEST = 12  # the model's own largest operand; the grid's is larger


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A random Llama with a token for each digit, asked for the first digit after examples."""
    own = vocabularies.KINDS["qwen"]()
    model = random_model("llama")
    model.resize_token_embeddings(len(own), mean_resizing=False)
    model.save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    entry = alone(
        "s", source="model", dtype="float32", answer_token=0, largest_operand=LARGEST,
        operators=["add", "subtract"], template="5+3=8\n9-4=5\n{op1}{symbol}{op2}=",
    )  # fmt: skip
    whole = changed(merged(SETTINGS, {"real_tasks": {"evaluation_prompts": 100}})) | entry
    whole |= dict.fromkeys(("known", "with_activations"), entry["subjects"])
    begin_project(tmp_path, whole, monkeypatch)
    for table in ("cells", "facts"):
        query.main(f"corpus/{table}")
    tasks.main()
    real_tasks.main()
    origins.main()
    return Subject.named("s")


def test_a_pretrained_model_has_prompts_of_its_own_and_one_accuracy(subject: Subject):
    task_predictions.main("s")
    query.main("store/task_accuracy", "s")
    predictions = subject.table("store/task_predictions.parquet")
    real = pl.read_parquet("data/corpus/real_tasks.parquet")
    answered = predictions.join(real, on=["task", "prompt_number"], maintain_order="left")
    assert answered.height == predictions.height
    assert answered["prompt"].null_count() == 0
    sums = pl.col("task").is_in(ARITHMETIC)
    largest = pl.max_horizontal("op1", "op2", "op3")
    assert real.filter(sums)["op1"].max() > LARGEST
    wanted = real.filter(~sums | (largest <= LARGEST))
    keys = ["task", "prompt_number"]
    assert answered.select(keys).sort(keys).equals(wanted.select(keys).sort(keys))
    ours = pl.read_parquet("data/corpus/tasks.parquet")
    assert predictions.join(ours, on=["task", "prompt_number"]).is_empty()
    known = answered["answer_token"].is_not_null()
    assert known.equals(answered["answer_logit"].is_not_null())
    own = tokenizer.load(subject.settings.source)
    numbers = answered.filter(known & answered["task"].is_in(ARITHMETIC))
    first_digits = own.batch_decode([[token] for token in numbers["answer_token"]])
    assert first_digits == numbers["answer"].str.slice(0, 1).to_list()
    assert first_digits
    accuracy = subject.table("store/task_accuracy.parquet")
    assert set(accuracy["split"]) == {"all"}
    assert set(accuracy["task"]) == set(wanted["task"])
    assert accuracy["prompts"].sum() == known.sum() > 0

    prompts.main("s")
    dump.main("s")
    query.main("store/accuracy", "s")
    answer_accuracy.main("s")
    cells = subject.table("store/predictions.parquet")
    for table in ("accuracy", "answer_accuracy"):
        measured = subject.table(f"store/{table}.parquet")
        assert measured.select("operator", "split").rows() == [("add", "all"), ("subtract", "all")]
        assert measured["cells"].sum() == cells.height
        right = (measured["accuracy"] * measured["cells"]).sum()
        assert right == pytest.approx(cells["correct"].sum())


def test_prompts_of_tasks_outside_a_chat_template_are_reported(
    subject: Subject, capsys: pytest.CaptureFixture
):
    line = "tasks s: prompts are plain text, outside the chat template\n"
    task_predictions.main("s")
    assert line not in capsys.readouterr().err
    written = subject.table("store/task_predictions.parquet")
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["subjects"]["s"]["chat"] = True
    Path("params.yaml").write_text(yaml.safe_dump(params))
    task_predictions.main("s")
    assert line in capsys.readouterr().err
    assert subject.table("store/task_predictions.parquet").equals(written)


def test_the_same_model_trained_here_would_have_splits(subject: Subject):
    row = pl.read_parquet(ORIGINS / "s.parquet").with_columns(trained_here=pl.lit(True))
    row.write_parquet(ORIGINS / "s.parquet")
    ours = pl.read_parquet("data/corpus/tasks.parquet")
    assert task_predictions.prompts_of(subject).equals(ours)
