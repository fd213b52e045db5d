"""Stores: exact, whole or not there at all, and damage is noticed."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core import layered


def write(path: Path, values: np.ndarray, block: int = 5, dtype: str = "float32", chunk: tuple[int, ...] = (3, 5, 9)) -> None:
    """A store of one layer from values (neurons, rows, columns)."""
    axes = dict(zip(("neuron", "op1", "op2"), values.shape, strict=True))
    with layered.writing(path) as file:
        results = np.arange(values.shape[1] * values.shape[2]).reshape(values.shape[1:]) - 1
        writer = layered.LayerWriter(file, [2], axes, dtype, chunk, {"subject": "s"}, columns={"result": results})
        for first in range(0, values.shape[1], block):
            writer.write(2, first, values[:, first : first + block])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 9), st.data())
def test_what_is_written_is_read(tmp_path_factory, neurons: int, rows: int, columns: int, data):
    values = np.random.default_rng(0).normal(size=(neurons, rows, columns)).astype(np.float32)
    path = tmp_path_factory.mktemp("store") / "add.h5"
    write(path, values)
    opened = layered.LayerStore(path)
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
    with pytest.raises(layered.StoreError, match=r"layer 2.*float16.*dump\.store_dtype: float32"):
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
    opened = layered.LayerStore(path)
    opened.read(2, slice(0, 3), slice(0, 5))  # another chunk, still whole
    with pytest.raises(layered.StoreError, match=r"add\.h5.*dataset layers/2"):
        opened.read(2, slice(3, 6), slice(5, 10))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not hdf5" * 100])
def test_a_file_that_is_not_whole_is_an_error(tmp_path: Path, damage):
    path = tmp_path / "add.h5"
    write(path, np.zeros((6, 10, 9)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        layered.StoreError,
        match=r"add\.h5 is damaged.*; `bag verify --heal` .* `dvc repro` makes it again, or `make pull`",
    ):
        layered.LayerStore(path).read(2, slice(0, 6), slice(0, 10))


def test_whole_arrays_come_back(tmp_path: Path):
    arrays = {"neurons": np.arange(24.0).reshape(2, 3, 4), "heads": np.ones((2, 2))}
    layered.write_array(tmp_path / "means.h5", arrays, {"subject": "s"})
    np.testing.assert_array_equal(layered.read_array(tmp_path / "means.h5", "neurons"), arrays["neurons"])
    with pytest.raises(layered.StoreError, match="dataset other"):
        layered.read_array(tmp_path / "means.h5", "other")


def test_a_store_that_is_not_there_and_one_of_a_stopped_stage_come_back_otherwise(tmp_path: Path):
    for read in (layered.LayerStore, layered.read_attributes):
        with pytest.raises(
            layered.StoreError,
            match=r"^there is no store .*means\.h5; `dvc repro` makes it, `make pull` fetches it$",
        ):
            read(tmp_path / "means.h5")
    part = tmp_path / "predictions.parts/key/000000.sums.h5"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"cut")
    with pytest.raises(layered.StoreError, match=r"000000\.sums\.h5 is damaged.*; remove it, and the stage makes it again"):
        layered.read_array(part, "neurons")
