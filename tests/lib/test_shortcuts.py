"""Check that shortcuts are remembered for the model that they were found on, and for no other."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.lib.executor import naive, parity_check, shortcuts
from stages.lib.executor.blocks import Block
from stages.lib.executor.executor import Executor
from stages.lib.executor.shortcuts import Shortcuts
from stages.lib.model import checkpoint
from tests.lib.test_executor import subject
from tests.lib.test_interventions import counted, counting, planned
from tests.model_folders import changed, updated


def remembering(loaded: checkpoint.Checkpoint, file: Path) -> Executor:
    return Executor(loaded, None, rows=100, memory=1 << 28, remembered=file)


def two_runs(loaded: checkpoint.Checkpoint) -> list[Block]:
    return planned(loaded)[1]


def refuse(_: object) -> Shortcuts:
    raise AssertionError("shortcuts are looked for again")


def test_shortcuts_are_found_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second process compares the interventions of its own table only, and computes alike."""
    loaded, file = subject(kind), tmp_path / "kept" / "model.json"
    first, blocks = remembering(loaded, file), two_runs(loaded)
    assert not file.exists()
    passes = counted(monkeypatch)
    parity_check.check(first, blocks)
    assert len(passes) == 5  # no patch, two zeroed MLPs, both interventions
    assert first.restarts

    passes.clear()
    monkeypatch.setattr(shortcuts, "find", refuse)
    second = remembering(loaded, file)
    parity_check.check(second, blocks)
    assert len(passes) == 2
    assert second.shortcuts == first.shortcuts
    for block in blocks:
        for (_, expected), (_, again) in zip(first.run(block), second.run(block), strict=True):
            np.testing.assert_array_equal(again.max_logit, expected.max_logit)


def test_a_model_that_fails_the_parity_check_is_not_remembered(tmp_path: Path):
    loaded, file = subject("llama"), tmp_path / "model.json"
    loaded.architecture.layers[-1].mlp_out.weight.zero_()
    for _ in range(2):
        with pytest.raises(parity_check.ParityError, match="changes no logit"):
            parity_check.check(remembering(loaded, file), two_runs(loaded))
    assert not file.exists()


def test_a_model_that_needs_whole_prompts_is_remembered_as_such(tmp_path: Path):
    loaded, file = subject("llama"), tmp_path / "model.json"
    runner, blocks = remembering(loaded, file), two_runs(loaded)
    loaded.architecture.layers[-1].block.register_forward_pre_hook(counting)
    parity_check.check(runner, blocks)
    assert shortcuts.read(file) == replace(runner.shortcuts, restarts=False)
    later = remembering(loaded, file)
    assert not later.restarts
    parity_check.check(later, blocks)


def test_a_remembered_shortcut_that_does_not_hold_is_found_out(tmp_path: Path):
    """Each run compares its own interventions; olmo2 normalises after its MLPs."""
    loaded, file = subject("olmo2"), tmp_path / "model.json"
    written = shortcuts.find(loaded)
    assert written.additive == (False, False)
    shortcuts.write(replace(written, additive=(True, True)), file)
    runner, blocks = remembering(loaded, file), two_runs(loaded)
    parity_check.check(runner, blocks)
    assert not runner.restarts
    [[intervention, *_], measured] = next(runner.run(blocks[0]))
    plain = naive.logits(runner.fresh(blocks[0].pairs), intervention).max(-1).values
    np.testing.assert_allclose(measured.max_logit[0], plain.numpy(), rtol=1e-5)


@pytest.mark.parametrize("written", [Shortcuts(False), Shortcuts(True, (True, False), True, False)])
def test_shortcuts_are_read_as_they_were_written(written: Shortcuts, tmp_path: Path):
    shortcuts.write(written, tmp_path / "model.json")
    assert shortcuts.read(tmp_path / "model.json") == written


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"additive": []}', '{"additive": 3}'])
def test_a_damaged_file_holds_no_shortcuts(text: str, tmp_path: Path):
    file = tmp_path / "model.json"
    assert shortcuts.read(file) is None
    file.write_text(text)
    assert shortcuts.read(file) is None


@pytest.mark.parametrize("change", ["nothing", "weights", "configuration", "dtype"])
def test_a_changed_model_has_shortcuts_of_its_own(
    change: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "mine")
    mine, dtype = Path("mine"), "float32"
    before = shortcuts.kept(checkpoint.load(mine, dtype, "cpu", 1), mine)
    if change == "weights":
        updated("model.norm.weight", torch.ones(32))(mine)
    if change == "configuration":
        changed("config.json", rms_norm_eps=1e-3)(mine)
    if change == "dtype":
        dtype = "float64"
    after = shortcuts.kept(checkpoint.load(mine, dtype, "cpu", 1), mine)
    assert (after == before) == (change == "nothing")
