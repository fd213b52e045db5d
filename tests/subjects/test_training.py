"""Training gives the same bytes, with and without interruptions, and learns what it should."""

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
from stages.lib.model import tokenizer
from stages.subjects import figure as training_figure
from stages.subjects import train
from stages.subjects.settings import Train
from stages.subjects.training import fresh, loop
from tests.lib.terminals import Terminal
from tests.mediation.paired import tables
from tests.micro import SETTINGS, SHIPPED, merged
from tests.subjects.grown import digests


def settings(**changes) -> Train:
    micro = merged(SHIPPED["train"]["abacus"], SETTINGS["train"]["abacus"])
    return check(Train, merged(micro, changes))


TASKS = check(Tasks, SHIPPED["tasks"])
OWN = tokenizer.build(50, ["+ = ( )"])


def started(**changes) -> loop.Run:
    recipe = settings(**changes)
    return loop.Run.start("train", recipe, lambda: fresh.llama(recipe.model, OWN))


def batch(step: int) -> loop.Batch:
    rng = np.random.default_rng(step)
    sequences = [rng.integers(3, 50, length).tolist() for length in rng.integers(2, 20, 12)]
    answers = rng.integers(3, 50, (12, 1)).tolist()
    return loop.bucket(list(map(loop.example, sequences, answers)))


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


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_state_is_not_used(
    tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture
):
    """A file may end anywhere after a power failure; None: one byte differs."""
    path = tmp_path / "state.safetensors"
    run = started()
    run.advance(batch(0))
    run.save_state(path, "these settings")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content if damage is None else damage)
    other = started()
    before = weights(other)
    assert not other.load_state(path, "these settings")
    assert (weights(other), other.step) == (before, 0)
    assert f"{path} is damaged: the run starts again" in capsys.readouterr().err


def test_padding_to_the_right_changes_no_answer():
    run = started()
    examples = [loop.example(tokens, [5, 6]) for tokens in ([1, 7, 9], [1, 7, 9, 4, 5], [1, 2])]
    [together] = run.predict(loop.bucket(examples))
    for predicted, (tokens, targets) in zip(together, examples, strict=True):
        [alone] = run.predict([(np.array([tokens]), np.array([targets]))])
        assert predicted[predicted != loop.NO_TARGET].tolist() == alone[0, -2:].tolist()


def test_targets_are_where_the_answer_follows():
    tokens, targets = loop.example([1, 7, 9], [5, 6, 2])
    assert tokens == [1, 7, 9, 5, 6]
    assert targets == [loop.NO_TARGET, loop.NO_TARGET, 5, 6, 2]


def test_loss_and_accuracy_are_of_whole_answers():
    """One of two answers has a wrong token: loss is a mean over tokens, accuracy over answers."""
    run = started()

    def following(prompt: list[int]) -> int:
        return int(run.predict(loop.bucket([loop.example(prompt, [3])]))[0][0, -1])

    def answer(prompt: list[int]) -> list[int]:
        first = following(prompt)
        return [first, following([*prompt, first])]

    right = loop.example([1, 7, 9], answer([1, 7, 9]))
    first, second = answer([1, 2])
    wrong = loop.example([1, 2], [first, (second + 1) % 50])
    run.measure({"both": loop.bucket([right, wrong]), "right": loop.bucket([right])})
    assert (run.log[-1]["both"], run.log[-1]["right"]) == (0.5, 1.0)
    expected: list[float] = []
    for tokens, targets in (right, wrong):
        logits = run.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        expected += (-logits[[-2, -1], targets[-2:]]).tolist()
    run.advance(loop.bucket([right, wrong]))
    assert run.loss == pytest.approx(np.mean(expected), rel=1e-5)


def test_training_learns_a_planted_rule():
    """The answer repeats the second token. With misaligned targets, no model could learn that."""
    run = started(steps=150, checkpoints=[150])
    rng = np.random.default_rng(0)
    for _ in range(150):
        numbers, lengths = rng.integers(3, 23, (64, 2)).tolist(), rng.integers(2, 4, 64)
        examples = []
        for (repeated, other), length in zip(numbers, lengths, strict=True):
            examples.append(loop.example([1, repeated, other][:length], [repeated]))
        run.advance(loop.bucket(examples))
    held = loop.bucket([loop.example([1, n, 5], [n]) for n in range(3, 23)])
    assert np.mean(run.predict(held)[0][:, -1] == range(3, 23)) >= 0.9


def drawn(**changes) -> tuple[train.TrainExamples, list[str]]:
    """The examples of a recipe, and a line `prompt -> target` for each target of the first step."""
    batch = dict.fromkeys(SHIPPED["train"]["abacus"]["batch"], 6)
    recipe = settings(batch=batch, evaluation_prompts=20, **changes)
    examples = train.TrainExamples(recipe, TASKS, 99, *tables().values())
    lines = []
    for all_tokens, all_targets in examples.of_step(0):
        for row, column in zip(*np.nonzero(all_targets != loop.NO_TARGET), strict=True):
            tokens = all_tokens[row, : column + 1]
            prompt = examples.tokenizer.decode(tokens, skip_special_tokens=True)
            lines.append(f"{prompt} -> {examples.tokenizer.decode(all_targets[row, [column]])}")
    return examples, lines


def test_numbers_in_digits_are_predicted_digit_by_digit_to_their_end():
    examples, lines = drawn(numbers="digits")
    digits = r"(\d(?: \d)*)"
    matches = re.findall(
        rf"^{digits} ([-+*/]) {digits} =((?: \d)*) -> (\d|</s>)$",
        "\n".join(lines),
        re.MULTILINE,
    )
    assert len(matches) > 10
    for x, sign, y, before, target in matches:
        calculate = {"+": add, "-": sub, "*": mul, "/": floordiv}[sign]
        result = calculate(int(x.replace(" ", "")), int(y.replace(" ", "")))
        whole = [*str(result), "</s>"]
        assert whole[: len(before.split()) + 1] == [*before.split(), target]
    assert set(examples.evaluation) == set(train.MEASURED)


def test_counting_has_a_target_at_every_thing():
    _, lines = drawn(curriculum=[{"steps": 1, "batch": {"counting": 40}}])
    assert len(lines) > 200
    for line in lines:
        text, _, target = line.partition(" -> ")
        numbers = {thing: number for number, thing in re.findall(r"(\d+) ([a-z]+)", text)}
        assert numbers[text.split()[-1]] == target


def test_lessons_come_one_after_the_other_and_then_the_mixture():
    lessons = [
        {"steps": 1, "batch": {"counting": 7}},
        {"steps": 2, "batch": {"retrieval": 5, "counting": 3}},
    ]
    examples, _ = drawn(curriculum=lessons)
    for step, expected in enumerate([7, 8, 8, 36]):
        assert sum(len(tokens) for tokens, _ in examples.of_step(step)) == expected
    for mixture, same in zip(examples.of_step(3), drawn()[0].of_step(3), strict=True):
        np.testing.assert_equal(mixture, same)


def test_queries_and_keys_start_alike_in_as_many_heads_as_the_recipe_says():
    shape = settings().model
    for alike in range(shape.heads + 1):
        for layer in started(model={"alike": alike}).model.model.layers:
            queries = layer.self_attn.q_proj.weight.unflatten(0, (shape.heads, -1))
            keys = layer.self_attn.k_proj.weight.unflatten(0, (shape.heads, -1))
            same = list(map(torch.equal, queries, keys))
            assert same == [True] * alike + [False] * (shape.heads - alike)
    with pytest.raises(
        ParamsError,
        match=f"alike is 9, which must be at most heads = {shape.heads}",
    ):
        settings(model={"alike": 9})


def test_the_figure_has_a_row_for_each_model_and_says_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kinds = [("one", "add", None), ("two", "add", None)]
    kinds += [("two", None, "retrieval"), ("two", None, "factual")]
    table = (
        pl.DataFrame(kinds, ["subject", "operator", "task"], orient="row")
        .join(pl.DataFrame({"step": [0, 50, 100]}), how="cross")
        .join(pl.DataFrame({"split": ["train", "held-out"]}), how="cross")
        .with_columns(accuracy=pl.col("step") / 100)
    )
    monkeypatch.chdir(tmp_path)
    Path("data/subjects").mkdir(parents=True)
    write_table(table, Path("data/subjects/training.parquet"))
    training_figure.main()
    shown = Path("reports/subjects/training.svg").read_text()
    for text in (
        *("one", "two", "train cells", "held-out cells", "held-out prompts, trained facts"),
        *("add", "retrieval", "factual", "not measured"),
    ):
        assert text in shown


def test_an_infinite_loss_is_an_error():
    run = started()
    run.model.lm_head.weight.data.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"train\.learning_rate"):
        run.advance(batch(0))


def test_checkpoints_are_bfloat16_and_load(micro: Path):
    folder = micro / "data/models/abacus"
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000", "step-00100", "step-00200"]
    tensors = load_file(folder / "step-00200/model.safetensors").values()
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(folder / "step-00200", dtype="float32")
    own = tokenizer.load(folder / "step-00200")
    assert own("3+4=")["input_ids"] == own.convert_tokens_to_ids(["<s>", "3", "+", "4", "="])
    assert len(own) == model.config.vocab_size


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
    expected = digests(micro / "data/models/abacus")
    assert digests(micro_copy / "data/models/abacus") == expected  # the earlier model is kept
    again = Terminal(micro_copy, sys.executable, "-m", "stages.subjects.train", "abacus")
    status, continued = again.finish()
    assert status == 0
    assert "200/200 " in continued
    assert " 0/200 " not in continued
    assert digests(micro_copy / "data/models/abacus") == expected
    assert not (micro_copy / "data/models/abacus.partial").exists()
