"""Fixtures of the tests about the circuit."""

from pathlib import Path

import pytest

from tests.circuit.prompted import made_project


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project whose model is in `checkpoint_folder`, and return its data folder."""
    return made_project(tmp_path, checkpoint_folder, monkeypatch)
