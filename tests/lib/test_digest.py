"""The key of a stage's parts changes with everything that they depend on, and nothing else."""

import importlib
import sys
from pathlib import Path

import pytest

from stages.lib.core.digest import digest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an importable package `keyed` with a module `inner`, and a folder with two files."""
    for name, text in {
        "keyed/__init__.py": "",
        "keyed/inner.py": "x = 1\n",
        "data/a": "a",
        "data/below/b": "b",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("keyed", "keyed.inner"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return tmp_path


def test_a_key_is_of_files_folders_modules_and_facts(package: Path):
    keyed, inner = sys.modules["keyed"], sys.modules["keyed.inner"]
    sources = {
        "file": package / "data/below/b",
        "folder": package / "data",
        "module": inner,
        "package": keyed,
    }

    def keys() -> dict[str, str]:
        return {name: digest([source], 1) for name, source in sources.items()}

    def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
        return {name for name in sources if after[name] != before[name]}

    before = keys()
    assert len({*before.values()}) == 4
    assert before == keys()
    assert before["module"] == digest([package / "keyed/inner.py"], 1) != digest([inner], 2)
    (package / "data/below/b").write_text("c")
    after = keys()
    assert changed(before, after) == {"file", "folder"}
    (package / "keyed/inner.py").write_text("x = 2\n")
    assert changed(after, keys()) == {"module", "package"}


def test_a_key_does_not_change_with_the_order_of_files_or_with_compiled_code(package: Path):
    keyed, data = sys.modules["keyed"], package / "data"
    before = digest([keyed, data])
    (package / "keyed/__pycache__").mkdir(exist_ok=True)
    (package / "keyed/__pycache__/other.pyc").write_bytes(b"1")
    assert digest([data, keyed, data / "a"]) == before
