"""Training gives the same bytes, whatever interrupts it."""

import hashlib
import re
import signal
import sys
from operator import add, floordiv, mul, sub
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.corpus.settings import Tasks
from stages.lib.core.settings import ParamsError, check
from stages.lib.core.tables import write_table
from stages.lib.core.words import OPERATORS
from stages.lib.core.words import TASKS as EVERY_TASK
from stages.lib.model import tokenizer
from stages.subjects import figure as training_figure
from stages.subjects import train
from stages.subjects.settings import Train
from stages.subjects.training import fresh, loop
from tests.lib.terminals import Terminal
from tests.mediation.paired import tables
from tests.micro import SETTINGS, SHIPPED, merged


def settings(**changes) -> Train:
    return check(
        Train, merged(merged(SHIPPED["train"]["abacus"], SETTINGS["train"]["abacus"]), changes)
    )


TASKS = check(Tasks, SHIPPED["tasks"])
OWN = tokenizer.build(50, ["+ = ( )"])


def started(**changes) -> loop.Run:
    chosen = settings(**changes)
    return loop.Run.start("train", chosen, lambda: fresh.llama(chosen.model, OWN))


def batch(step: int) -> loop.Batch:
    rng = np.random.default_rng(step)
    sequences = [rng.integers(3, 50, length).tolist() for length in rng.integers(2, 20, 12)]
    return loop.bucket(
        [
            loop.asked(tokens, [answer])
            for tokens, answer in zip(sequences, rng.integers(3, 50, 12).tolist(), strict=True)
        ]
    )


def weights(run: loop.Run) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in run.model.state_dict().items()}


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    whole = started()
    for step in range(12):
        whole.advance(batch(step))
    first = started()
    for step in range(7):
        first.advance(batch(step))
    first.save_state(tmp_path / "state.safetensors", "print")
    second = started(seed=9)
    assert weights(second) != weights(first)
    assert second.load_state(tmp_path / "state.safetensors", "print")
    for step in range(second.step, 12):
        second.advance(batch(step))
    assert weights(second) == weights(whole)


def test_a_state_of_something_else_is_not_used(tmp_path: Path):
    run = started()
    run.advance(batch(0))
    run.save_state(tmp_path / "state.safetensors", "these settings")
    other = started()
    before = weights(other)
    assert not other.load_state(tmp_path / "state.safetensors", "other settings")
    assert (weights(other), other.step) == (before, 0)


def test_padding_to_the_right_changes_no_answer():
    run = started()
    examples = [loop.asked(tokens, [5, 6]) for tokens in ([1, 7, 9], [1, 7, 9, 4, 5], [1, 2])]
    [together] = run.predict(loop.bucket(examples))
    for said, (tokens, targets) in zip(together, examples, strict=True):
        assert (
            said[said != loop.UNASKED].tolist()
            == run.predict([(np.array([tokens]), np.array([targets]))])[0][0, -2:].tolist()
        )
        assert (said != loop.UNASKED).sum() == 2


def test_what_is_asked_stands_where_the_answer_follows():
    assert loop.asked([1, 7, 9], [5, 6, 2]) == (
        [1, 7, 9, 5, 6],
        [loop.UNASKED, loop.UNASKED, 5, 6, 2],
    )


def test_the_loss_and_accuracy_are_of_whole_answers():
    """Two answers of which one is wrong in one token: cross entropy is the mean of all tokens asked for, accuracy the share without fault."""
    run = started()
    prompts = [[1, 7, 9], [1, 2]]
    said = [run.predict(loop.bucket([loop.asked(prompt, [3])]))[0][0, -1] for prompt in prompts]
    following = [
        run.predict(loop.bucket([loop.asked([*p, int(s)], [3])]))[0][0, -1]
        for p, s in zip(prompts, said, strict=True)
    ]
    right = loop.asked(prompts[0], [int(said[0]), int(following[0])])
    wrong = loop.asked(prompts[1], [int(said[1]), (int(following[1]) + 1) % 50])
    run.measure({"both": loop.bucket([right, wrong]), "right": loop.bucket([right])})
    assert (run.log[-1]["both"], run.log[-1]["right"]) == (0.5, 1.0)
    expected = []
    for tokens, targets in (right, wrong):
        logits = run.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        expected += [
            -logits[place, target].item()
            for place, target in enumerate(targets)
            if target != loop.UNASKED
        ]
    run.advance(loop.bucket([right, wrong]))
    assert run.loss == pytest.approx(np.mean(expected), rel=1e-5)


def test_training_learns_a_planted_rule():
    """The answer repeats the second token: a model that trains at all gets it, one whose labels are misaligned cannot."""
    run = started(steps=150, checkpoints=[150])
    rng = np.random.default_rng(0)
    for _ in range(150):
        sequences = [
            [1, int(a), int(b)][: int(n)]
            for a, b, n in zip(*rng.integers(3, 23, (2, 64)), rng.integers(2, 4, 64), strict=True)
        ]
        run.advance(loop.bucket([loop.asked(tokens, [tokens[1]]) for tokens in sequences]))
    held = loop.bucket([loop.asked([1, n, 5], [n]) for n in range(3, 23)])
    assert np.mean(run.predict(held)[0][:, -1] == range(3, 23)) >= 0.9


def drawn(**changes) -> tuple[train.TrainExamples, list[str]]:
    """The examples of a recipe, and what those of its first step are, each as `prompt -> what is to be said`."""
    batch = dict.fromkeys(SHIPPED["train"]["abacus"]["batch"], 6)
    chosen = settings(batch=batch | changes.pop("batch", {}), evaluation_prompts=20, **changes)
    examples = train.TrainExamples(chosen, TASKS, 99, *tables().values())
    own = examples.tokenizer
    read = [
        f"{own.decode(tokens[: place + 1], skip_special_tokens=True)} -> {own.decode([targets[place]])}"
        for rows in examples.of_step(0)
        for tokens, targets in zip(*rows, strict=True)
        for place in np.flatnonzero(targets != loop.UNASKED)
    ]
    return examples, read


def test_numbers_written_in_digits_are_said_digit_by_digit_to_their_end():
    examples, read = drawn(numbers="digits")
    sums = [
        re.fullmatch(r"(\d(?: \d)*) ([-+*/]) (\d(?: \d)*) =((?: \d)*) -> (\d|</s>)", line)
        for line in read
    ]
    found = [match for match in sums if match]
    assert len(found) > 10
    for match in found:
        x, sign, y, before, said = match.groups()
        number = {"+": add, "-": sub, "*": mul, "/": floordiv}[sign](
            *(int(digits.replace(" ", "")) for digits in (x, y))
        )
        whole = [*str(number), "</s>"]
        assert whole[: len(before.split()) + 1] == [*before.split(), said]
    assert set(examples.evaluation) == {
        f"{name}_{part}" for name in (*OPERATORS, *EVERY_TASK) for part in ("train", "held_out")
    } - {"factual_held_out"}


def test_what_is_counted_is_said_at_every_thing():
    _, read = drawn(curriculum=[{"steps": 1, "batch": {"counting": 40}}])
    counted = [line for line in read if re.match(r"\d+ [a-z]+", line)]
    assert len(counted) == len(read) > 200
    for line in counted:
        text, _, said = line.partition(" -> ")
        assert {thing: number for number, thing in re.findall(r"(\d+) ([a-z]+)", text)}[
            text.split()[-1]
        ] == said


def test_lessons_come_one_after_the_other_and_then_the_mixture():
    lessons = [
        {"steps": 1, "batch": {"counting": 7}},
        {"steps": 2, "batch": {"retrieval": 5, "counting": 3}},
    ]
    examples, _ = drawn(curriculum=lessons)
    assert [sum(len(tokens) for tokens, _ in examples.of_step(step)) for step in range(4)] == [
        7,
        8,
        8,
        36,
    ]
    mixture, same = examples.of_step(3), drawn()[0].of_step(3)
    assert all(
        np.array_equal(a, b)
        for there, here in zip(mixture, same, strict=True)
        for a, b in zip(there, here, strict=True)
    )


def test_queries_and_keys_start_alike_in_as_many_heads_as_the_recipe_says():
    shape = settings().model
    for alike in range(shape.heads + 1):
        for layer in started(model={"alike": alike}).model.model.layers:
            queries, keys = (
                part.weight.unflatten(0, (shape.heads, -1))
                for part in (layer.self_attn.q_proj, layer.self_attn.k_proj)
            )
            same = [torch.equal(query, key) for query, key in zip(queries, keys, strict=True)]
            assert same == [True] * alike + [False] * (shape.heads - alike)
    with pytest.raises(
        ParamsError,
        match=f"alike is 9, which must be at most heads = {shape.heads}",
    ):
        settings(model={"alike": 9})


def test_the_figure_has_a_row_for_each_model_and_says_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [
        (subject, step, operator, task, split, step / 100)
        for subject, tasks in (("one", [None]), ("two", [None, "retrieval", "factual"]))
        for step in (0, 50, 100)
        for task in tasks
        for operator in (["add"] if task is None else [None])
        for split in ("train", "held-out")
    ]
    monkeypatch.chdir(tmp_path)
    Path("data/subjects").mkdir(parents=True)
    columns = ["subject", "step", "operator", "task", "split", "accuracy"]
    write_table(pl.DataFrame(rows, columns, orient="row"), Path("data/subjects/training.parquet"))
    training_figure.main()
    shown = Path("reports/subjects/training.svg").read_text()
    words = (
        "one",
        "two",
        "train cells",
        "held-out cells",
        "held-out prompts, trained facts",
        "add",
        "retrieval",
        "factual",
        "not measured",
    )
    assert [word for word in words if word not in shown] == []


def test_an_infinite_loss_is_an_error():
    run = started()
    run.model.lm_head.weight.data.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"train\.learning_rate"):
        run.advance(batch(0))


def test_checkpoints_are_bfloat16_and_load(micro: Path):
    folder = micro / "data/models/abacus"
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000", "step-00100", "step-00200"]
    assert {str(t.dtype) for t in load_file(folder / "step-00200/model.safetensors").values()} == {
        "torch.bfloat16"
    }
    model = AutoModelForCausalLM.from_pretrained(folder / "step-00200", dtype="float32")
    own = tokenizer.load(folder / "step-00200")
    assert own("3+4=")["input_ids"] == own.convert_tokens_to_ids(["<s>", "3", "+", "4", "="])
    assert len(own) == model.config.vocab_size


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_an_interrupted_stage_continues_to_the_same_bytes(micro: Path, micro_copy: Path):
    terminal = Terminal(micro_copy, sys.executable, "-m", "stages.subjects.train", "abacus")
    seen = ""
    for piece in terminal.pieces():
        seen = (seen + piece)[-400:]
        if max(map(int, re.findall(r"\b(\d+)/200 ", seen)), default=0) >= 20:
            break
    terminal.process.send_signal(signal.SIGINT)
    status, rest = terminal.finish()
    assert status != 0
    assert "the same command continues from there" in rest
    assert (micro_copy / "data/models/abacus.partial/.state.safetensors").exists()
    assert digests(micro_copy / "data/models/abacus") == digests(
        micro / "data/models/abacus"
    )  # nothing computed is lost
    status, continued = Terminal(
        micro_copy, sys.executable, "-m", "stages.subjects.train", "abacus"
    ).finish()
    assert status == 0
    assert "200/200 " in continued
    assert " 0/200 " not in continued
    assert digests(micro_copy / "data/models/abacus") == digests(micro / "data/models/abacus")
    assert not (micro_copy / "data/models/abacus.partial").exists()
