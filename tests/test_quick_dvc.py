"""The micro project is made with locks that DVC itself would write, byte for byte."""

import copy
from pathlib import Path

import pytest
import yaml
from dvc.utils.serialize import modify_yaml

from tests.micro import ROOT
from tests.quick_dvc import modify_lock

LOCKS = sorted(ROOT.glob("stages/*/dvc.lock"), key=lambda lock: lock.stat().st_size)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("lock", LOCKS[:3], ids=lambda lock: lock.parent.name)
def test_an_entry_is_written_as_dvc_writes_it(lock: Path, is_new: bool, tmp_path: Path):
    ours, theirs = tmp_path / "ours.lock", tmp_path / "theirs.lock"
    content = yaml.safe_load(lock.read_text())
    names = list(content["stages"])
    name = names[len(names) // 2]
    entry = copy.deepcopy(content["stages"][name])
    entry["deps"][0]["md5"] = "0" * 32
    theirs.write_text(lock.read_text())
    with modify_yaml(str(theirs)) as whole:  # as DVC writes it
        if is_new:
            del whole["stages"][name]
    ours.write_bytes(theirs.read_bytes())
    for modify, path in ((modify_yaml, theirs), (modify_lock, ours)):
        with modify(str(path)) as whole:
            whole["stages"].update({name: entry})
    assert ours.read_bytes() == theirs.read_bytes()
    assert yaml.safe_load(ours.read_text())["stages"][name] == entry


def test_a_first_entry_is_written_as_dvc_writes_it(tmp_path: Path):
    entry = {"cmd": "python -m x", "deps": [{"path": "a", "md5": "0" * 32, "size": 1}]}
    for modify, name in ((modify_yaml, "theirs"), (modify_lock, "ours")):
        with modify(str(tmp_path / name)) as whole:
            whole.update({"schema": "2.0"})
            whole["stages"] = whole.get("stages", {})
            whole["stages"].update({"x@y": entry})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
