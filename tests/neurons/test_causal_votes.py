"""Check measured changes of logits against plain passes, and lenses on models of known effects."""

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
import torch

from stages.lib.core import hdf5_store
from stages.lib.executor.blocks import PassSizes
from stages.lib.executor.pairs import PromptPairs, by_length
from stages.lib.model import value_logits
from stages.lib.model.architecture import patched
from stages.lib.model.checkpoint import Checkpoint
from stages.lib.sql.database import Database
from stages.neurons import logit_shifts, tuned_lens
from tests.lib.test_executor import pair_table, subject
from tests.made import ROOT, ask, described

TOKENS = np.arange(10, 60)  # of the numbers 0..49
INVERTED, KEPT = 0, 1  # neurons of layer 1 of the model `inverting`


def shifted(layers: list[int], neurons: int, std: float) -> pl.DataFrame:
    """Return the table shifted_neurons."""
    rows = [(layer, neuron) for layer in layers for neuron in range(neurons)]
    table = pl.DataFrame(rows, schema=["layer", "neuron"], orient="row")
    keys = {"subject": pl.lit("s"), "operator": pl.lit("add"), "std": pl.lit(std)}
    return table.with_columns(**keys)


def prompts(count: int = 4) -> list[PromptPairs]:
    """Return random prompts, whose answers are numbers."""
    table = pair_table(3, [(5, 5)] * count)
    answers = pl.Series("answer_token", np.random.default_rng(5).choice(TOKENS, count))
    return by_length(table.with_columns(answers), 100)


def measured(loaded: Checkpoint, neurons: pl.DataFrame, whole: bool = False) -> pl.DataFrame:
    """Return the table logit_shifts."""
    sizes = PassSizes(loaded, 60, 1 << 28)
    bundles = neurons.partition_by("layer", maintain_order=True)
    runner = logit_shifts.checked_executor(loaded, sizes, TOKENS, prompts(), bundles)
    if whole:
        runner.run_whole()
    frames = []
    for bundle in bundles:
        columns = logit_shifts.shifts(runner, bundle, prompts())
        frames.append(bundle.with_columns(columns))
    return pl.concat(frames).select(list(logit_shifts.SCHEMA)).cast(logit_shifts.SCHEMA)


def plain(loaded: Checkpoint, layer: int, neuron: int, step: float) -> np.ndarray:
    """Return number logits (prompts, numbers), above their mean, with a shift at the end."""

    def shift(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed[:, -1, neuron] += step
        return changed

    [pairs] = prompts()
    with torch.no_grad(), patched(loaded.architecture.layers[layer].mlp_out, shift):
        out = loaded.model(input_ids=torch.from_numpy(pairs.tokens), use_cache=False)
    logits = out.logits[:, -1, TOKENS].numpy()
    return logits - logits.mean(1, keepdims=True)


@pytest.mark.parametrize(("kind", "whole"), [("llama", False), ("neox", False), ("olmo2", True)])
def test_changes_are_those_of_plain_passes(kind: str, whole: bool):
    loaded = subject(kind, torch.float64)
    table = measured(loaded, shifted([0, 1], 5, 0.7), whole)
    [pairs] = prompts()
    answers = np.arange(len(pairs)), pairs.answers - TOKENS[0]
    for row in table.filter(pl.col("neuron").is_in([0, 4])).iter_rows(named=True):
        up, clean, down = (
            plain(loaded, row["layer"], row["neuron"], step) for step in (0.7, 0, -0.7)
        )
        changes = (up - down) / 2
        tolerance = 3e-5 * np.abs(changes).max()
        np.testing.assert_allclose(row["changes"], changes.mean(0), atol=tolerance)
        np.testing.assert_allclose(row["mean_square"], np.square(changes).mean(), rtol=1e-4)
        np.testing.assert_allclose(row["answer_change"], changes[answers].mean(), atol=tolerance)
        sides = (up - clean).mean(0), (clean - down).mean(0)
        np.testing.assert_allclose(row["linearity"], np.corrcoef(*sides)[0, 1], atol=2e-5)


def inverting(strength: float) -> Checkpoint:
    """Return a model whose last layer inverts one direction, and changes nothing else.

    Its final norm is linear, as an epsilon dwarfs the variance. gelu(x) - gelu(-x) = x, so two
    neurons are a linear map. The value vectors of two neurons of layer 1 are this direction and one
    orthogonal to it.
    """
    loaded = subject("neox", torch.float64)
    base = loaded.model.base_model
    base.final_layer_norm.eps = 1e9
    last, before = base.layers[2], base.layers[1]
    last.attention.dense.weight.zero_()
    last.attention.dense.bias.zero_()
    last.post_attention_layernorm.eps = 1e9
    last.post_attention_layernorm.weight.fill_(1)
    last.post_attention_layernorm.bias.zero_()
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 3)) - np.eye(32, 3))
    basis -= basis.mean(0)
    direction = torch.from_numpy(basis[:, 0] / np.linalg.norm(basis[:, 0]))
    other = torch.from_numpy(basis[:, 1])
    other -= (other @ direction) * direction
    inward, outward = last.mlp.dense_h_to_4h, last.mlp.dense_4h_to_h
    for part in (inward.weight, inward.bias, outward.weight, outward.bias):
        part.zero_()
    scale = 1e9**0.5
    inward.weight[0], inward.weight[1] = scale * direction, -scale * direction
    outward.weight[:, 0], outward.weight[:, 1] = -strength * direction, strength * direction
    before.mlp.dense_4h_to_h.weight[:, INVERTED] = direction
    before.mlp.dense_4h_to_h.weight[:, KEPT] = other
    return loaded


def votes(loaded: Checkpoint, table: pl.DataFrame, lenses: np.ndarray | None = None):
    """Return the tables causal_votes and vote_agreement. lenses: (layers, width, width)."""
    directions = value_logits.directions(loaded, TOKENS.tolist())
    direct, tuned, fits = [], [], []
    layers, width = len(loaded.architecture.layers), loaded.architecture.width
    for layer in range(layers):
        part = loaded.architecture.layers[layer]
        lens = np.eye(width) if lenses is None else lenses[layer]
        tuned.append(tuned_lens._logits(loaded, "s", layer, directions, lens))
        direct.append(value_logits.of_layer(part, directions))
        fits.append({"layer": layer, "logit_lens": 0.25, "tuned_lens": 0.5})
    tables = {"logit_shifts": table, "tuned_logits": pl.concat(tuned)}
    with TemporaryDirectory() as folder:
        files = {"value_logits": [written(Path(folder) / "value_logits.h5", direct)]}
        for name, rows in tables.items():
            files[name] = [Path(folder) / f"{name}.parquet"]
            rows.write_parquet(files[name][0])
        query = described(ROOT / "stages")["causal_votes"]
        relation = Database(files, threads=1).sql(query.path.read_text(), subject="s")
        types = zip(relation.columns, map(str, relation.types), strict=True)
        assert dict(types) == {name: kind for name, (kind, _) in query.columns.items()}
        causal = relation.pl()
    given = {"causal_votes": causal, "lens_fits": pl.DataFrame(fits)}
    return causal, ask("vote_agreement", given)


def written(path: Path, layers: list[np.ndarray]) -> Path:
    """Write a store of value logits, (neurons, numbers) of each layer."""
    axes = dict(zip(("neuron", "number"), layers[0].shape, strict=True))
    names = {"subject": "s"}
    with hdf5_store.writing(path) as file:
        numbers = list(range(len(layers)))
        writer = hdf5_store.LayerWriter(file, numbers, axes, "float32", (64, 50), names)
        for layer, logits in enumerate(layers):
            writer.write(layer, 0, logits)
    return path


def test_an_inverted_direction_is_promoted_with_the_opposite_sign():
    """The last layer adds -3 x its input along the direction, so that -2 x remains."""
    loaded = inverting(3.0)
    causal, agreement = votes(loaded, measured(loaded, shifted([1, 2], 6, 0.5)))
    last, before = causal.filter(layer=2), causal.filter(layer=1)
    row, kept = (before.row(neuron, named=True) for neuron in (INVERTED, KEPT))
    np.testing.assert_allclose(row["correlation"], -1, atol=1e-6)
    np.testing.assert_allclose(row["gain"], -2, rtol=1e-5)
    np.testing.assert_allclose(row["strength"], 2 * row["direct_strength"], rtol=1e-5)
    np.testing.assert_allclose([kept["correlation"], kept["gain"]], 1, rtol=1e-5)
    np.testing.assert_allclose([kept["consistency"], kept["linearity"]], 1, atol=1e-5)
    # two inverting neurons and four without any value vector are in layer 2
    np.testing.assert_allclose(last["correlation"][:2], 1, atol=1e-6)
    assert last["correlation"][2:].null_count() == 4
    rows = agreement.rows_by_key("layer", named=True, unique=True)
    assert rows[1]["neurons"] == 6
    assert rows[2]["neurons"] == 2
    np.testing.assert_allclose(rows[1]["inverted"], (before["correlation"] < -0.5).mean())
    assert rows[1]["inverted"] >= 1 / 6
    assert rows[1]["agreeing"] < rows[2]["agreeing"] == 1


def test_a_tuned_lens_finds_the_inversion():
    """The lens is fitted on random streams, since it is a property of the last layer alone."""
    loaded = inverting(3.0)
    before = np.random.default_rng(1).normal(size=(400, 32))
    block = loaded.model.base_model.layers[2].mlp
    norm = loaded.model.base_model.layers[2].post_attention_layernorm
    with torch.no_grad():
        stream = torch.from_numpy(before)
        last = (stream + block(norm(stream))).numpy()
    matrix, offset = tuned_lens.fitted(before, last, 1e-9)
    np.testing.assert_allclose(before @ matrix + offset, last, atol=1e-5)
    assert tuned_lens.explained(before, last) < tuned_lens.explained(before @ matrix, last)
    lenses = np.stack([np.eye(32), matrix, np.eye(32)])
    causal, _ = votes(loaded, measured(loaded, shifted([1, 2], 6, 0.5)), lenses)
    np.testing.assert_allclose(causal.filter(layer=1)["tuned_correlation"], 1, atol=1e-4)
    identity, _ = tuned_lens.fitted(before[:0], last[:0], 0.1)
    np.testing.assert_array_equal(identity, np.eye(32))


def test_the_queries_compute_correlations_of_numpy():
    random = np.random.default_rng(4)
    loaded = subject("neox", torch.float64)
    table = measured(loaded, shifted([0, 1, 2], 4, 0.7))
    lenses = random.normal(size=(3, 32, 32))
    causal, agreement = votes(loaded, table, lenses)
    directions = value_logits.directions(loaded, TOKENS.tolist())
    controls = []
    for row, shift in zip(causal.rows(named=True), table.rows(named=True), strict=True):
        part = loaded.architecture.layers[row["layer"]]
        direct = value_logits.of_layer(part, directions)
        tuned = value_logits.of_layer(part, directions @ torch.from_numpy(lenses[row["layer"]].T))
        changes, neuron = np.array(shift["changes"]), row["neuron"]
        expected = [np.corrcoef(changes, lens[neuron])[0, 1] for lens in (direct, tuned)]
        measures = [row["correlation"], row["tuned_correlation"]]
        np.testing.assert_allclose(measures, expected, atol=1e-4)
        others = [np.corrcoef(changes, other)[0, 1] for other in direct[:4]]
        controls.append(int(np.abs(np.array(others) - row["chance_correlation"]).argmin()))
        assert controls[-1] != neuron
        centred = direct[neuron] - direct[neuron].mean()
        unit = centred * shift["std"] * shift["scale"]
        np.testing.assert_allclose(row["gain"], changes @ unit / (unit @ unit), rtol=1e-3)
        np.testing.assert_allclose(row["direct_strength"], unit.std(), rtol=1e-4)
        np.testing.assert_allclose(row["strength"], changes.std(), rtol=1e-4)
        common = np.square(changes).mean()
        share = (4 * common - shift["mean_square"]) / (3 * shift["mean_square"])
        np.testing.assert_allclose(row["consistency"], share, atol=1e-4)
    for layer in range(3):
        assert sorted(controls[4 * layer : 4 * layer + 4]) == [0, 1, 2, 3]
    own = causal.filter(layer=1)
    row = agreement.filter(layer=1).row(0, named=True)
    np.testing.assert_allclose(row["correlation"], own["correlation"].mean())
    weighted = (own["strength"] * own["tuned_correlation"]).sum() / own["strength"].sum()
    np.testing.assert_allclose(row["weighted_tuned"], weighted)
    np.testing.assert_allclose(row["gain"], own["gain"].median())
    assert (row["logit_lens_fit"], row["tuned_lens_fit"]) == (0.25, 0.5)


@pytest.mark.parametrize("patched_neurons", [0, 2])
def test_shifted_neurons_are_all_or_those_that_are_patched(patched_neurons: int):
    rows = list(product(("add", "subtract"), (1, 2), (0, 3)))
    variances = pl.DataFrame(rows, schema=["operator", "layer", "neuron"], orient="row")
    variances = variances.with_columns(variance=pl.lit(4.0))
    columns = {
        "operator": [None, "add", "add", "add"],
        "layer": [1, 2, 2, 1],
        "units": [[0], [3], [7], [3]],
        "position": ["last", "last", "last", "op1"],
    }
    given = {"neuron_variances": variances, "neuron_interventions": pl.DataFrame(columns)}
    types = {"layer": pl.Int16, "neuron": pl.Int32}
    given["neuron_variances"] = variances.cast(types)
    table = ask("shifted_neurons", given, patched_neurons=patched_neurons)
    assert set(table["std"]) == {2.0}
    expected = [("add", 1, 0), ("add", 2, 3), ("subtract", 1, 0)] if patched_neurons else rows
    assert table.select("operator", "layer", "neuron").rows() == sorted(expected)
