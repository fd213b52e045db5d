"""Files of object storage, read in blocks, are what they are read at once."""

from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from stages.lib.core import storage


@given(content=st.binary(max_size=60), block=st.integers(1, 20), parts=st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 70))))
def test_any_part_read_in_blocks_is_that_of_the_file(tmp_path_factory, content: bytes, block: int, parts: list[tuple[int, int]]):
    path: Path = tmp_path_factory.mktemp("files") / "content"
    path.write_bytes(content)
    with patch.object(storage, "BLOCK", block), path.open("rb", buffering=0) as plain:
        blocks = storage.BlockFile(LocalFileSystem().open_input_file(str(path)))
        assert blocks.seek(0, 2) == len(content)
        for place, size in parts:
            assert blocks.seek(place) == plain.seek(place)
            wanted = plain.read(size)
            found = b""
            while len(found) < len(wanted):
                part = blocks.read(len(wanted) - len(found))
                assert part
                found += part
            assert found == wanted
