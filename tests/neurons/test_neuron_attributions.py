"""Attributions of all neurons, end to end on made pairs of prompts, and the table's pieces."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.lib.core.tables import read_table, write_table
from stages.lib.executor import pairs
from stages.lib.executor.values import Values
from stages.neurons import neuron_attributions
from stages.neurons.gradients import attributions
from stages.neurons.neuron_attributions import SCHEMA, pieces, sites_of, write
from tests.circuit.prompted import loaded, made_project, result
from tests.made import late_layers

SITES = [(0, "op1"), (0, "op2"), (0, "operator"), (2, "last")]


@pytest.mark.parametrize("kind", ["llama"])
def test_every_neuron_of_the_sites_is_estimated_on_every_discovery_pair(
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    project = made_project(tmp_path, checkpoint_folder, monkeypatch)
    made = pl.read_parquet(project / "circuit/pairs.parquet").sample(40, seed=1)
    other = pl.col("tokens", "answer_token", "positions").reverse()
    made = made.with_columns(other.name.prefix("counterfactual_"))
    made.write_parquet(project / "circuit/pairs.parquet")
    late_layers(2).write_parquet(project / "circuit/late_layers.parquet")
    neuron_attributions.main("tiny")
    table = result(project, "neuron_attributions")
    keys = ["layer", "position", "neuron", "pair"]
    discovery = made.filter(split="discovery").sort("pair")
    places = product(SITES, range(48), discovery["pair"])
    rows = [(*site, neuron, pair) for site, neuron, pair in places]
    assert table.select(keys).rows() == rows
    [group] = pairs.by_length(discovery, 99)
    slopes = attributions(Values(loaded(checkpoint_folder), group, None), SITES)
    for layer, position in SITES:
        values = (
            table.filter(layer=layer, position=position)["attribution"].to_numpy().reshape(48, -1)
        )
        np.testing.assert_allclose(values.T, slopes[layer, position].numpy(), rtol=1e-4, atol=1e-6)
    made.clear().write_parquet(project / "circuit/pairs.parquet")
    neuron_attributions.main("tiny")
    assert result(project, "neuron_attributions").is_empty()


def test_sites_are_the_late_layers_and_the_operands_in_the_first():
    assert sites_of(2, 3) == SITES
    assert sites_of(None, 3) == SITES[:3]
    assert sites_of(0, 1) == [(0, "last"), *SITES[:3]]


def test_pieces_are_one_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(neuron_attributions, "ROWS", 100)
    numbers, shape = np.array([3, 5, 9]), (2, 50, 3)
    estimates = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    frames = list(pieces("s", SITES[:2], numbers, estimates))
    assert [frame.height for frame in frames] == [100, 100, 100]
    write(iter(frames), tmp_path / "streamed.parquet")
    table = read_table(tmp_path / "streamed.parquet")
    assert table.schema == SCHEMA
    assert table["attribution"].to_list() == estimates.ravel().tolist()
    places = product(["op1", "op2"], range(50), numbers.tolist())
    assert table.select("position", "neuron", "pair").rows() == list(places)
    monkeypatch.setattr(neuron_attributions, "ROWS", 1000)
    write(pieces("s", SITES[:2], numbers, estimates), tmp_path / "streamed.parquet")
    write_table(table.rechunk(), tmp_path / "whole.parquet")
    assert (tmp_path / "streamed.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
