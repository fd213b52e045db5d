"""Compiled functions survive changes of the classes that they take and of what they call."""

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


CALLED = """
from stages.lib.core.compiled import compiled

FACTOR = {factor}

@compiled()
def times(number):
    return {sign}FACTOR * number
"""
CALLER = """
from called_by_others import times
from stages.lib.core.compiled import compiled

@compiled()
def result(number):
    return times(number) + 1
"""


def test_a_changed_function_or_constant_compiles_its_callers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "caller_of_others.py").write_text(CALLER)
    for factor, sign, expected in (("2", "", 43), ("3", "", 64), ("3", "-", -62), ("3", "-", -62)):
        (tmp_path / "called_by_others.py").write_text(CALLED.format(factor=factor, sign=sign))
        loaded("called_by_others")
        function = loaded("caller_of_others").result
        assert function(21) == expected
    assert function.stats.cache_hits  # the last time, nothing had changed
    for name in ("called_by_others", "caller_of_others"):
        sys.modules.pop(name)
