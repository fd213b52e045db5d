"""The dump's sums over each neuron equal numpy's over the store, and SQL uses them."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core import environment
from stages.lib.core.shards import stores
from stages.lib.core.tables import read_table, write_table
from stages.lib.sql.database import connect
from stages.store import sums

TOTALS = """
    select
        subject, operator, layer, neuron,
        sum(activation) as total, min(activation) as least, max(activation) as most
    from activations
    group by all
    order by all
"""


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    unanswered=st.sampled_from([0.0, 0.3, 1.0]),
    offset=st.sampled_from([0.0, 1e3]),
)
def test_blocks_together_are_the_grid(seed: int, rows: list[int], unanswered: float, offset: float):
    rng = np.random.default_rng(seed)
    first, third = (rng.normal(size=(2, 70, sum(rows), 6)) + offset).astype(np.float32)
    results = np.where(rng.random((sum(rows), 6)) < unanswered, -1, 7)
    blocks = []
    for end, n in zip(np.cumsum(rows), rows, strict=True):
        part = slice(end - n, end)
        layers = {1: first[:, part], 3: third[:, part]}
        blocks.append(sums.of_block("add", layers, results[part]))
    table = sums.together("s", blocks)
    assert table.select("subject", "operator").unique().rows() == [("s", "add")]
    assert table["layer"].to_list() == [1] * 70 + [3] * 70
    assert table["neuron"].to_list() == [*range(70)] * 2
    values = np.concatenate([first, third]).astype(np.float64)
    assert (table["prompts"] == results.size).all()
    assert (table["cells"] == (results >= 0).sum()).all()
    np.testing.assert_allclose(table["total"], values.sum((1, 2)), rtol=1e-12, atol=1e-9)
    assert (table["smallest"].to_numpy() == values.min((1, 2))).all()
    assert (table["largest"].to_numpy() == values.max((1, 2))).all()
    if not (results >= 0).any():
        assert table["mean"].null_count() == table["variance"].null_count() == 140
    else:
        kept = values[:, results >= 0]
        np.testing.assert_allclose(table["mean"], kept.mean(1), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(table["variance"], kept.var(1), rtol=1e-9, atol=1e-12)


def activations(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return random activations: of any size, with many ties, or next to zero of either sign."""
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, (shape[0], 1, 1))
    if kind == "ties":
        return np.round(values)
    if kind == "zeros":
        return np.where(rng.random(shape) < 0.5, -0.0, values * 1e-7)
    return values


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(2, 70), st.integers(1, 40), st.integers(1, 130)),
    dtype=st.sampled_from([np.float16, np.float32]),
    kind=st.sampled_from(["sizes", "ties", "zeros"]),
    answered=st.sampled_from(["none", "first", "some", "all"]),
    workers=st.integers(1, 3),
)
def test_sums_are_numpys_to_the_last_bit(seed, shape, dtype, kind, answered, workers):
    rng = np.random.default_rng(seed)
    layers = {layer: activations(rng, shape, kind).astype(dtype) for layer in (1, 30)}
    cells = {"none": 0.0, "some": 0.7, "all": 1.0}.get(answered, 0.0) > rng.random(shape[1:])
    cells[0, 0] |= answered == "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "threads", lambda: workers)
        table = sums.of_block("add", layers, np.where(cells, 3, -1))
    values = np.concatenate([*layers.values()]).astype(np.float64)
    columns = {"total": values.sum((1, 2))}
    columns["smallest"], columns["largest"] = values.min((1, 2)) + 0.0, values.max((1, 2)) + 0.0
    columns["mean"] = columns["variance"] = np.full(len(values), np.nan)
    if cells.any():
        kept = values[:, cells]
        columns["mean"] = kept.mean(1)
        columns["variance"] = np.square(kept - columns["mean"][:, None]).mean(1)
    for name, column in columns.items():
        sums_of_neurons = table[name].to_numpy()
        assert sums_of_neurons.tobytes() == column.astype(sums_of_neurons.dtype).tobytes(), name


@pytest.mark.parametrize("subject", ["abacus", "planted"])
def test_the_dumps_sums_are_those_of_its_store(micro: Path, subject: str):
    table = read_table(micro / f"data/{subject}/store/neuron_sums.parquet")
    by_operator = {}
    for store in stores(micro / f"data/{subject}/store/activations"):
        by_operator[store.attributes["operator"]] = store
    assert set(table["operator"]) == by_operator.keys()
    for operator, store in by_operator.items():
        for layer in store.layers:
            values = store.read(layer, slice(None), slice(None)).astype(np.float64)
            kept = values[:, store.columns["result"] >= 0]
            own = table.filter(operator=operator, layer=layer)
            assert own["neuron"].to_list() == list(range(len(values)))
            np.testing.assert_allclose(own["total"], values.sum((1, 2)), rtol=1e-12, atol=1e-9)
            np.testing.assert_allclose(own["mean"], kept.mean(1), rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(own["variance"], kept.var(1), rtol=1e-9, atol=1e-12)


def test_sql_over_whole_neurons_reads_no_chunk(micro: Path, tmp_path: Path):
    folder = tmp_path / "data/abacus/store"
    shutil.copytree(micro / "data/abacus/store/activations", folder / "activations")
    alone = connect(tmp_path / "data")
    expected = alone.sql(TOTALS).pl()
    assert alone.lazy["activations"].reads.total() > 0
    shutil.copy(micro / "data/abacus/store/neuron_sums.parquet", folder)
    helped = connect(tmp_path / "data")
    totals = helped.sql(TOTALS).pl()
    assert helped.lazy["activations"].reads.total() == 0
    expected = expected.cast(dict(totals.schema))
    assert totals.drop("total").equals(expected.drop("total"))
    np.testing.assert_allclose(totals["total"], expected["total"], rtol=1e-12, atol=1e-9)


def test_sums_that_lack_a_layer_are_not_used(micro: Path, tmp_path: Path):
    folder = tmp_path / "data/abacus/store"
    shutil.copytree(micro / "data/abacus/store/activations", folder / "activations")
    whole = read_table(micro / "data/abacus/store/neuron_sums.parquet")
    write_table(whole.filter(pl.col("layer") > 0), folder / "neuron_sums.parquet")
    database = connect(tmp_path / "data")
    assert len(database.sql(TOTALS).pl()) == len(whole)
    assert database.lazy["activations"].reads.total() > 0


@pytest.mark.parametrize("order", [1, -1])
def test_no_extreme_is_a_negative_zero(order: int):
    """Which of 0 and -0 is the minimum depends on the CPU's instructions and on their order."""
    values = np.array([[-0.0, 0.0] * 32, [0.0] * 64, [-0.0] * 64], np.float16)[:, None, ::order]
    rows = sums.of_block("add", {0: values}, np.ones((1, 64), int))
    assert not np.signbit(rows.select("smallest", "largest").to_numpy()).any()
