"""Stores are exact, complete or absent, and damage is noticed."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core import chunks, environment, hdf5_store
from stages.lib.core.files import full
from tests.conftest import run_in
from tests.micro import ROOT


def write(
    path: Path,
    values: np.ndarray,
    block: int = 5,
    dtype: str = "float32",
    chunk: tuple[int, ...] = (3, 5, 9),
) -> None:
    """Write a store of one layer from values (neurons, rows, columns)."""
    axes = dict(zip(("neuron", "op1", "op2"), values.shape, strict=True))
    with hdf5_store.writing(path) as file:
        results = np.arange(values.shape[1] * values.shape[2]).reshape(values.shape[1:]) - 1
        writer = hdf5_store.LayerWriter(
            file, [2], axes, dtype, chunk, {"subject": "s"}, columns={"result": results}
        )
        for first in range(0, values.shape[1], block):
            writer.write(2, first, values[:, first : first + block])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 9), st.data())
def test_what_is_written_is_read(tmp_path_factory, neurons: int, rows: int, columns: int, data):
    values = np.random.default_rng(0).normal(size=(neurons, rows, columns)).astype(np.float32)
    path = tmp_path_factory.mktemp("store") / "add.h5"
    write(path, values)
    opened = hdf5_store.LayerStore(path)
    a = data.draw(st.integers(0, neurons - 1))
    b = data.draw(st.integers(0, rows - 1))
    np.testing.assert_array_equal(opened.read(2, slice(a, None), slice(b, None)), values[a:, b:])
    assert opened.axes == {"neuron": neurons, "op1": rows, "op2": columns}
    assert opened.attributes["subject"] == "s"
    assert opened.columns["result"].shape == (rows, columns)


def test_equal_content_is_equal_bytes(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(6, 10, 9))
    for name in "ab":
        write(tmp_path / f"{name}.h5", values, dtype="float16")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("value", [70_000.0, np.nan])
def test_a_value_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path: Path, value: float):
    values = np.zeros((4, 10, 9))
    values[1, 7, 3] = value
    with pytest.raises(
        hdf5_store.StoreError, match=r"layer 2.*float16.*dump\.store_dtype: float32"
    ):
        write(tmp_path / "add.h5", values, dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_byte_is_an_error_that_names_file_and_dataset(tmp_path: Path):
    path = tmp_path / "add.h5"
    write(path, np.random.default_rng(0).normal(size=(6, 10, 9)))
    with h5py.File(path) as file:
        chunk = file["layers/2"].id.get_chunk_info_by_coord((3, 5, 0))
    damaged = bytearray(path.read_bytes())
    damaged[chunk.byte_offset + 17] ^= 1
    path.write_bytes(damaged)
    opened = hdf5_store.LayerStore(path)
    opened.read(2, slice(0, 3), slice(0, 5))  # another chunk, still whole
    with pytest.raises(hdf5_store.StoreError, match=r"add\.h5.*dataset layers/2"):
        opened.read(2, slice(3, 6), slice(5, 10))


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not hdf5" * 100]
)
def test_a_file_that_is_not_whole_is_an_error(tmp_path: Path, damage):
    path = tmp_path / "add.h5"
    write(path, np.zeros((6, 10, 9)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        hdf5_store.StoreError,
        match=(
            r"add\.h5 is damaged.*; `bag verify --heal` .* `dvc repro` makes it again, or `make "
            r"pull`"
        ),
    ):
        hdf5_store.LayerStore(path).read(2, slice(0, 6), slice(0, 10))


def test_whole_arrays_come_back(tmp_path: Path):
    arrays = {"neurons": np.arange(24.0).reshape(2, 3, 4), "heads": np.ones((2, 2))}
    hdf5_store.write_array(tmp_path / "means.h5", arrays, {"subject": "s"})
    np.testing.assert_array_equal(
        hdf5_store.read_array(tmp_path / "means.h5", "neurons"), arrays["neurons"]
    )
    with pytest.raises(hdf5_store.StoreError, match="dataset other"):
        hdf5_store.read_array(tmp_path / "means.h5", "other")


def test_a_store_that_is_not_there_and_one_of_a_stopped_stage_come_back_otherwise(tmp_path: Path):
    for read in (hdf5_store.LayerStore, hdf5_store.read_attributes):
        with pytest.raises(
            hdf5_store.StoreError,
            match=r"^there is no store .*means\.h5; `dvc repro` makes it, `make pull` fetches it$",
        ):
            read(tmp_path / "means.h5")
    part = tmp_path / "predictions.parts/key/000000.sums.h5"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"cut")
    with pytest.raises(
        hdf5_store.StoreError,
        match=r"000000\.sums\.h5 is damaged.*; remove it, and the stage makes it again",
    ):
        hdf5_store.read_array(part, "neurons")


class CachedWriter(hdf5_store.LayerWriter):
    """Writes all chunks through HDF5's cache, which computes their checksums."""

    def write(self, layer: int, first: int, block: np.ndarray) -> None:
        self.datasets[layer][:, first : first + block.shape[1]] = block


def written(
    writer: type[hdf5_store.LayerWriter],
    path: Path,
    layers: dict[int, np.ndarray],
    chunk: tuple[int, ...],
    rows: int,
    cache: int | None,
) -> bytes:
    """Return the bytes of a file of layers (neurons, rows, columns), written in blocks of rows.

    cache: bytes of HDF5's cache, None for as many as usual.
    """
    sample = layers[0]
    axes = dict(zip(("neuron", "op1", "op2"), sample.shape, strict=True))
    columns = {"result": np.zeros(sample.shape[1:])}
    with h5py.File(path, "w", libver=("v110", "v110"), locking=False, rdcc_nbytes=cache) as file:
        store = writer(file, list(layers), axes, sample.dtype.name, chunk, {}, columns=columns)
        for first in range(0, sample.shape[1], rows):
            for layer, values in layers.items():
                store.write(layer, first, values[:, first : first + rows])
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(
    chunk=st.tuples(st.integers(1, 8), st.integers(1, 20), st.integers(1, 30)),
    groups=st.integers(1, 200),
    extra=st.sampled_from([0, 0, 0, 1]),
    blocks=st.integers(1, 4),
    last=st.sampled_from([0, 0, 1, 5]),
    rows=st.sampled_from([0, 0, 0, 1]),
    layers=st.integers(1, 3),
    dtype=st.sampled_from([np.float16, np.float32]),
    cache=st.integers(0, 1 << 16),
    threads=st.integers(1, 3),
)
def test_chunks_written_directly_leave_the_bytes_that_hdf5_leaves(
    tmp_path_factory, *, chunk, groups, extra, blocks, last, rows, layers, dtype, cache, threads
):
    """Write blocks of the chunks' rows and of one row more: whole and partial chunks."""
    shape = (chunk[0] * groups + extra, chunk[1] * blocks + last, chunk[2])
    rng = np.random.default_rng(groups)
    values = {layer: rng.normal(size=shape).astype(dtype) for layer in range(layers)}
    path = tmp_path_factory.mktemp("store") / "add.h5"
    case = (path, values, chunk, chunk[1] + rows, cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "threads", lambda: threads)
        assert written(hdf5_store.LayerWriter, *case) == written(CachedWriter, *case)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_large_blocks_are_written_directly(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: type,
):
    direct = []
    sealed = chunks.sealed
    monkeypatch.setattr(chunks, "sealed", lambda whole: direct.append(len(whole)) or sealed(whole))
    monkeypatch.setattr(hdf5_store, "AT_ONCE", 1 << 18)
    chunk = (8, 20, 128)
    values = np.random.default_rng(0).normal(size=(8 * 600, 40, 128)).astype(dtype)
    case = (tmp_path / "add.h5", {0: values, 1: -values}, chunk, 20, None)
    expected = written(CachedWriter, *case)
    assert not direct
    assert written(hdf5_store.LayerWriter, *case) == expected
    cached = (8 << 20) // (values.itemsize * 8 * 20 * 128) + 1
    assert sum(direct) == 2 * 2 * max(0, 600 - 2 * cached)
    values[4000, 30, 5] = np.inf
    with pytest.raises(
        hdf5_store.StoreError, match=r"layer 0: an activation is NaN, infinite or too large"
    ):
        written(hdf5_store.LayerWriter, *case)


@pytest.mark.parametrize("length", [1, 2, 4999, 1 << 16, (1 << 16) + 1, 200_000])
def test_checksums_are_those_of_hdf5(tmp_path: Path, length: int):
    """Try random bits, zeros, ones, and words whose sums are multiples of 65535 but not 0."""
    words = np.random.default_rng(0).integers(0, 1 << 16, (5, length), dtype=np.uint16)
    words[1:] = [[0], [0xFFFF], [1], [0x8000]]
    words[3, length // 2 :] = 0xFFFE
    values = words.view(np.float16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", data=values, chunks=(1, length), fletcher32=True)
        file.flush()
        expected = [dataset.id.read_direct_chunk((number, 0))[1] for number in range(5)]
    assert [chunk.tobytes() for chunk in chunks.sealed(values)] == expected


WRITE = {
    "parquet": """
import polars as pl
from stages.lib.core.tables import write_table
write_table(pl.DataFrame({"a": range(100_000)}), Path("out"))
""",
    "hdf5": """
import numpy as np
from stages.lib.core.hdf5_store import writing
with writing(Path("out")) as file:
    file["a"] = np.ones(100_000)
""",
}


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
def test_a_disk_that_fills_up_is_a_sentence_and_leaves_nothing(tmp_path: Path, kind: str):
    (tmp_path / "out.partial").symlink_to("/dev/full")
    code = f"from pathlib import Path\n{WRITE[kind]}"
    done = run_in(tmp_path, sys.executable, "-c", code, check=False, more={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr == f"{full(Path('out'))}\n"
    assert not list(tmp_path.iterdir())
