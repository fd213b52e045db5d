"""Training gives the same bytes, whatever interrupts it."""

import hashlib
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.lib.core.settings import check
from stages.lib.model import tokenizer
from stages.subjects.settings import Train
from stages.subjects.training import fresh, loop
from tests.lib.terminals import Terminal
from tests.micro import SETTINGS, SHIPPED, merged


def settings(**changes) -> Train:
    return check(Train, merged(merged(SHIPPED["train"], SETTINGS["train"]), changes))


OWN = tokenizer.build(50, ["+ = ( )"])


def started(**changes) -> loop.Run:
    chosen = settings(**changes)
    return loop.Run.start("train", chosen, lambda: fresh.llama(chosen.model, OWN))


def batch(step: int) -> loop.Batch:
    rng = np.random.default_rng(step)
    sequences = [rng.integers(3, 50, length).tolist() for length in rng.integers(2, 20, 12)]
    return loop.bucket(sequences, rng.integers(3, 50, 12).tolist())


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
    sequences = [[1, 7, 9], [1, 7, 9, 4, 5, 6], [1, 2]]
    [(tokens, lengths, answers)] = loop.bucket(sequences, [5, 6, 7])
    together = run.predict([(tokens, lengths, answers)])[0]
    alone = [run.predict(loop.bucket([s], [0]))[0][0] for s in sequences]
    assert together.tolist() == alone


def test_training_learns_a_planted_rule():
    """The answer repeats the second token: a model that trains at all gets it, one whose labels are misaligned cannot."""
    run = started(steps=150, checkpoints=[150])
    rng = np.random.default_rng(0)
    for _ in range(150):
        sequences = [[1, int(a), int(b)][: int(n)] for a, b, n in zip(*rng.integers(3, 23, (2, 64)), rng.integers(2, 4, 64), strict=True)]
        run.advance(loop.bucket(sequences, [s[1] for s in sequences]))
    held = loop.bucket([[1, n, 5] for n in range(3, 23)], list(range(3, 23)))
    assert np.mean(run.predict(held)[0] == held[0][2]) >= 0.9


def test_an_infinite_loss_is_an_error():
    run = started()
    run.model.lm_head.weight.data.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"train\.learning_rate"):
        run.advance(batch(0))


def test_checkpoints_are_bfloat16_and_load(micro: Path):
    folder = micro / "data/models/abacus"
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000", "step-00100", "step-00200", "training_log.parquet"]
    assert {str(t.dtype) for t in load_file(folder / "step-00200/model.safetensors").values()} == {"torch.bfloat16"}
    model = AutoModelForCausalLM.from_pretrained(folder / "step-00200", dtype="float32")
    own = tokenizer.load(folder / "step-00200")
    assert own("3+4=")["input_ids"] == own.convert_tokens_to_ids(["<s>", "3", "+", "4", "="])
    assert len(own) == model.config.vocab_size


def digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_interrupted_stage_continues_to_the_same_bytes(micro: Path, micro_copy: Path):
    terminal = Terminal(micro_copy, sys.executable, "-m", "stages.subjects.train")
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
    assert digests(micro_copy / "data/models/abacus") == digests(micro / "data/models/abacus")  # nothing computed is lost
    status, continued = Terminal(micro_copy, sys.executable, "-m", "stages.subjects.train").finish()
    assert status == 0
    assert "200/200 " in continued
    assert " 0/200 " not in continued
    assert digests(micro_copy / "data/models/abacus") == digests(micro / "data/models/abacus")
    assert not (micro_copy / "data/models/abacus.partial").exists()
