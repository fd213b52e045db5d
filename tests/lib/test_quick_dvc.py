"""Locks that DVC would write, byte for byte."""

import copy
from pathlib import Path

import pytest
import yaml
from dvc.utils.serialize import YAMLFileCorruptedError, dumps_yaml, modify_yaml, parse_yaml

from stages.lib.console.quick_dvc import LOCK, modify_lock, parse
from tests.micro import ROOT

LOCKS = sorted(ROOT.glob("stages/*/dvc.lock"), key=lambda lock: lock.stat().st_size)
WRITERS = {"theirs": modify_yaml, "ours": modify_lock}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Return where each of WRITERS has its lock."""
    for name in WRITERS:
        (tmp_path / name).mkdir()
    return {name: tmp_path / name / "dvc.lock" for name in WRITERS}


def same(paths: dict[str, Path]) -> bool:
    return paths["ours"].read_bytes() == paths["theirs"].read_bytes()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_our_locks_look_as_dvc_writes_them(lock: Path):
    assert LOCK.fullmatch(lock.read_text())


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("lock", LOCKS[:3], ids=lambda lock: lock.parent.name)
def test_an_entry_is_written_as_dvc_writes_it(lock: Path, is_new: bool, paths: dict[str, Path]):
    content = yaml.safe_load(lock.read_text())
    names = list(content["stages"])
    name = names[len(names) // 2]
    entry = copy.deepcopy(content["stages"][name])
    entry["deps"][0]["md5"] = "0" * 32
    for path in paths.values():
        path.write_text(lock.read_text())
        with modify_yaml(str(path)) as whole:
            if is_new:
                del whole["stages"][name]
    for writer, path in paths.items():
        with WRITERS[writer](str(path)) as whole:
            whole["stages"].update({name: entry})
    assert same(paths)
    assert yaml.safe_load(paths["ours"].read_text())["stages"][name] == entry


def test_a_removed_entry_is_removed_as_dvc_does(paths: dict[str, Path]):
    for writer, path in paths.items():
        path.write_text(LOCKS[0].read_text())
        with WRITERS[writer](str(path)) as whole:
            del whole["stages"][next(iter(whole["stages"]))]
    assert same(paths)
    assert paths["ours"].read_text() != LOCKS[0].read_text()


def test_another_part_of_a_lock_is_written_as_dvc_does(paths: dict[str, Path]):
    for writer, path in paths.items():
        path.write_text(LOCKS[0].read_text())
        with WRITERS[writer](str(path)) as whole:
            whole["datasets"] = [{"name": "d"}]
    assert same(paths)
    assert "datasets:" in paths["ours"].read_text()


def test_anchors_are_numbered_as_dvc_does(paths: dict[str, Path]):
    """A value that an entry has twice has an anchor. Entries before and after it have some, too."""
    lock = ROOT / "stages/subjects/dvc.lock"
    names = [*yaml.safe_load(lock.read_text())["stages"], "x@y", "x@z"]
    for writer, path in paths.items():
        path.write_text(lock.read_text())
        for number, name in enumerate((names[-1], names[0], names[-2], names[-1])):
            twice = [number, 2]
            values = {"params.yaml": {"a": twice, "b": twice}}
            with WRITERS[writer](str(path)) as whole:
                whole["stages"].update({name: {"cmd": "python -m x", "params": values}})
            assert yaml.safe_load(path.read_text())["stages"][name]["params"] == values
    assert same(paths)


def test_stages_with_anchors_are_written_as_dvc_writes_them(paths: dict[str, Path]):
    locks = [lock for lock in LOCKS if "&id" in lock.read_text()]
    assert locks
    for lock in locks:
        content = yaml.safe_load(lock.read_text())["stages"]
        name = next(name for name in content if "&id" in dumps_yaml({name: content[name]}))
        entry = content[name] | {"deps": []}
        for writer, path in paths.items():
            path.write_text(lock.read_text())
            with WRITERS[writer](str(path)) as whole:
                whole["stages"].update({name: entry})
        assert same(paths), (lock, name)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_first_entry_is_written_as_dvc_writes_it(is_empty: bool, paths: dict[str, Path]):
    entry = {"cmd": "python -m x", "deps": [{"path": "a", "md5": "0" * 32, "size": 1}]}
    for writer, path in paths.items():
        if is_empty:
            path.touch()
        with WRITERS[writer](str(path)) as whole:
            whole.update({"schema": "2.0"})
            whole["stages"] = whole.get("stages", {})
            whole["stages"].update({"x@y": entry})
    assert same(paths)


@pytest.mark.parametrize(
    "file", [ROOT / "params.yaml", ROOT / "stages/heuristics/params.yaml"], ids=str
)
def test_settings_are_parsed_as_dvc_does(file: Path):
    text, numbers = file.read_text(), "a: {b: [1e-3, 0o7, on, 1_000]}"
    for content in (text, numbers, ""):
        first, expected = parse(content, "file"), parse_yaml(content, "file")
        assert first == expected
        first["a"] = 1  # DVC may change what it has read
        assert parse(content, "file") == expected
    for _ in range(2):
        with pytest.raises(YAMLFileCorruptedError) as raised:
            parse("{", "mine.yaml")
        assert raised.value.path == "mine.yaml"


def test_comments_of_a_lock_and_of_a_pipeline_are_kept(tmp_path: Path):
    content = "# mine\nstages:\n  x:\n    cmd: echo  # why\n\n  y:\n    cmd: echo\n"
    for name in ("dvc.lock", "dvc.yaml"):
        (tmp_path / name).write_text(content)
        with modify_lock(str(tmp_path / name)) as whole:
            whole["stages"]["y"] = {"cmd": "ls"}
        assert (tmp_path / name).read_text() == content.replace(
            "y:\n    cmd: echo", "y:\n    cmd: ls"
        )
