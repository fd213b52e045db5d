"""Explore the micro project: its tables, and a model that runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.explorer.explorer import Explorer
from stages.explorer.project import Project


@pytest.fixture(scope="session")
def explorer(micro: Path) -> Iterator[Explorer]:
    """Return an explorer in the project's root, as `bag explore` has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(micro)
        yield Explorer(Project())


@pytest.fixture(autouse=True)
def in_root(micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(micro)


@pytest.fixture
def project(explorer: Explorer) -> Project:
    return explorer.project
