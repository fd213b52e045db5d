"""Environments that users have and tests seldom do: locales without UTF-8, Jupyter's and a user's matplotlib, folders that cannot be
written, file systems without locks."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from stages.lib.core.tables import write_table
from tests.conftest import run_in
from tests.micro import ROOT, copy_project

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # in which Python takes text files for ASCII


def test_every_text_file_is_read_and_written_with_an_encoding():
    """Ruff's PLW1514 sees only calls on what it knows to be a path."""
    for file in (ROOT / "stages").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text"):
                assert "encoding" in {keyword.arg for keyword in node.keywords}, f"{file}, line {node.lineno}"


def test_settings_tables_and_queries_are_read_in_any_locale(tmp_path: Path):
    project = copy_project(tmp_path / "project")
    write_table(pl.DataFrame({"subject": ["größe"], "accuracy": [1.0]}), project / "data/abacus/store/accuracy.parquet")
    code = (
        "import sys; from stages import settings; from stages.lib.console import bag; settings.main();"
        "sys.argv = ['bag', 'tables', 'accuracy']; bag.main(); sys.argv = ['bag', 'select subject from accuracy']; bag.main()"
    )
    done = run_in(project, "python", "-c", code, more=ASCII)
    assert "gr??e" in done.stdout
    assert (project / "data/settings.txt").exists()
