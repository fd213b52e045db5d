"""The style of CONTRIBUTING.md, as far as it can be counted, so that it stays as it is."""

import ast
import re
from collections import Counter
from collections.abc import Callable
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


def long_lines(pattern: str, is_broken: Callable[[str], bool]) -> list[str]:
    """Return the lines of files of a pattern that are longer than COLUMNS, and can be broken."""
    files = sorted(ROOT.glob(pattern))
    assert files
    long = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            text = without_code(text)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > COLUMNS and is_broken(line):
                long.append(f"{file.relative_to(ROOT)}:{number}")
    return long


def without_code(page: str) -> str:
    """Return a page with empty lines in place of its blocks of code, and of what they print."""
    return re.sub(
        r"^( *)(```+).*?^\1\2$",
        lambda block: "\n" * block[0].count("\n"),
        page,
        flags=re.DOTALL | re.MULTILINE,
    )


@pytest.mark.parametrize(
    "pattern",
    [
        *("Makefile", ".ci/*", ".gitignore", "*.toml", "*.yaml"),
        *("stages/**/*.py", "stages/**/*.sql", "stages/**/*.yaml", "stages/**/*.yml"),
        *("stages/**/*.js", "stages/**/*.css", "stages/**/*.j2"),
        *("tests/**/*.py", "docs/**/*.sql", "examples/**/*.yaml"),
    ],
)
def test_no_line_is_long(pattern: str):
    """Ruff looks at Python only. An address, or a type of a column, cannot be broken."""
    unbreakable = re.compile(r"https?://\S+$|^-- \w+ +STRUCT")
    assert long_lines(pattern, lambda line: not unbreakable.search(line)) == []


@pytest.mark.parametrize("pattern", ["*.md", "docs/**/*.md", "stages/**/*.md", "examples/**/*.md"])
def test_no_line_of_prose_is_long(pattern: str):
    """A row of a table, and a line that is one link or picture, cannot be broken."""
    unbreakable = re.compile(r" *\||\W*\[[^]]*\]\([^)]*\)\W*$")
    assert long_lines(pattern, lambda line: not unbreakable.match(line)) == []


def test_code_of_a_page_is_no_prose():
    page = "a\n```sh\nb\n```\nc\n  ```\n  d\n  ```\n"
    assert without_code(page).split("\n") == ["a", "", "", "", "c", "", "", "", ""]
