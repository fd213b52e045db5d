"""Neurons on single tokens, end to end on a folder of made prompts."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.circuit import recording
from stages.neurons import token_activations
from tests.circuit.prompted import loaded, made_project, result


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made_project(tmp_path, checkpoint_folder, monkeypatch)


def test_token_activations_are_those_at_op1(project: Path, checkpoint_folder: Path):
    token_activations.main("tiny")
    table = result(project, "token_activations")
    subject = loaded(checkpoint_folder)
    places = product(range(subject.architecture.neurons), range(20))
    assert table.select("neuron", "number").rows() == list(places)
    expected = recording.neurons(subject, np.array([[1, 7 + 3]]), 0, 1)[0]
    np.testing.assert_allclose(
        table.filter(pl.col("number") == 7)["activation"], expected, rtol=1e-4, atol=1e-5
    )
