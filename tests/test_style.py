"""The style of CONTRIBUTING.md, as far as it can be counted, so that it stays as it is."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# Per 1,000 lines that are not blank. Tests are to reach 30 comprehensions, too.
MOST = {
    "stages": {"comprehensions": 30, "conditional expressions": 15, "assignment expressions": 2},
    "tests": {"comprehensions": 30, "conditional expressions": 15, "assignment expressions": 2},
}
COUNTED = {
    ast.ListComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
    ast.IfExp: "conditional expressions",
    ast.NamedExpr: "assignment expressions",
}
# Identifiers that say nothing about what they hold.
EMPTY = {"of", "one", "here", "there", "found", "chosen", "asked", "said", "told", "into"}


def names(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to variables, parameters, functions and classes."""
    names_given = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names_given.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names_given.add(name)
    return names_given


@pytest.mark.parametrize("folder", MOST)
def test_python_is_short_of_dense_expressions_and_of_empty_names(folder: str):
    lines, counts, empty = 0, Counter(), {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines += sum(1 for line in text.splitlines() if line.strip())
        counts.update(COUNTED.get(type(node)) for node in ast.walk(tree))
        if EMPTY & names(tree):
            empty[str(file.relative_to(ROOT))] = EMPTY & names(tree)
    assert empty == {}
    assert lines > 10_000
    for kind, most in MOST[folder].items():
        assert 1000 * counts[kind] / lines <= most, kind


@pytest.mark.parametrize("pattern", ["**/*.py", "**/*.sql", "**/*.yaml"])
def test_no_line_is_long(pattern: str):
    """Ruff looks at Python only. An address, or a type of a column, cannot be broken."""
    files = [file for folder in MOST for file in sorted((ROOT / folder).glob(pattern))]
    assert files
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            link = re.search(r"https?://\S+$|^-- \w+ +STRUCT", line)
            assert len(line) <= COLUMNS or link, f"{file.relative_to(ROOT)}:{number}"
