"""Compiled functions survive a change of the classes that they take."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

CLASS = "from typing import NamedTuple\nclass {name}(NamedTuple):\n    number: int\n"
FUNCTION = """
from stages.lib.core.compiled import compiled

@compiled()
def doubled(pair):
    return 2 * pair.number
"""


def loaded(name: str) -> ModuleType:
    """Load a module as a new process would."""
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_a_renamed_class_compiles_a_function_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "function_of_pairs.py").write_text(FUNCTION)
    for name in ("Pair", "Couple"):
        (tmp_path / "classes_of_pairs.py").write_text(CLASS.format(name=name))
        pair = getattr(loaded("classes_of_pairs"), name)(21)
        function = loaded("function_of_pairs").doubled
        assert function(pair) == 42
        assert len(list(tmp_path.rglob("*.nbi"))) == 1
        assert function.stats.cache_misses
    same = loaded("function_of_pairs").doubled
    assert same(pair) == 42
    assert same.stats.cache_hits
    for name in ("classes_of_pairs", "function_of_pairs"):
        sys.modules.pop(name)
