"""Files of object storage have the same content in blocks as read at once."""

from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from stages.lib.core import storage


@given(
    content=st.binary(max_size=60),
    block=st.integers(1, 20),
    parts=st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 70))),
)
def test_any_part_read_in_blocks_is_that_of_the_file(
    tmp_path_factory, content: bytes, block: int, parts: list[tuple[int, int]]
):
    path: Path = tmp_path_factory.mktemp("files") / "content"
    path.write_bytes(content)
    with patch.object(storage, "BLOCK", block), path.open("rb", buffering=0) as plain:
        blocks = storage.BlockFile(LocalFileSystem().open_input_file(str(path)))
        assert blocks.seek(0, 2) == len(content)
        for place, size in parts:
            assert blocks.seek(place) == plain.seek(place)
            assert blocks.read(size) == plain.read(size)  # at once, as HDF5 never asks twice
            assert blocks.tell() == plain.tell()


def test_a_store_of_many_blocks_is_what_it_is_on_disk(tmp_path: Path):
    """Its chunks and HDF5's own data begin and end anywhere in a block."""
    path, values = (
        tmp_path / "store.h5",
        np.random.default_rng(0).integers(0, 1 << 30, (40, 70, 90), np.int32),
    )
    with h5py.File(path, "w") as file:
        for layer in range(30):
            file.create_dataset(
                f"layers/{layer}", data=values + layer, chunks=(7, 30, 90), fletcher32=True
            )
    with (
        patch.object(storage, "BLOCK", 50_001),
        h5py.File(storage.BlockFile(LocalFileSystem().open_input_file(str(path)))) as file,
    ):
        for layer in range(30):
            np.testing.assert_array_equal(file[f"layers/{layer}"], values + layer)
