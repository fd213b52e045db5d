"""Where files are: on this machine or in object storage, read alike."""

from functools import lru_cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from pyarrow import NativeFile

BLOCK = 1 << 18  # bytes asked of object storage at once: about a chunk of a store
KEPT = 32  # blocks kept of a file


def place(path: Path | str) -> Path:
    """A path of this machine, or, where it has a scheme, of object storage, such as s3://bucket/folder. Both are read alike.

    Raises ValueError or ImportError where nothing here can reach it.
    """
    if "://" not in str(path):
        return Path(path)
    from upath import UPath  # only here: what reaches into storage is slow to import

    return cast("Path", UPath(str(path)))


def pieces(path: Path) -> Path | BinaryIO:
    """What a library that reads a file here and there takes: its path, or of object storage, a file that keeps the blocks it has read."""
    if isinstance(path, Path):
        return path
    from pyarrow.fs import FileSystem  # only here: it is slow to import

    storage, name = FileSystem.from_uri(str(path))
    return cast("BinaryIO", BlockFile(storage.open_input_file(name)))


class BlockFile(RawIOBase):
    """A file of object storage, read in blocks, of which the last KEPT are kept.

    Its requests run in pyarrow's own threads, which never wait for a thread of Python: HDF5 is read under a lock, which the thread that
    answers would have to take as well as soon as it collects garbage of HDF5.
    """

    def __init__(self, file: "NativeFile"):
        self._size, self._place = file.size(), 0
        self._block = lru_cache(KEPT)(
            lambda number: file.read_at(min(BLOCK, self._size - number * BLOCK), number * BLOCK)
        )

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Moves to a byte, which may lie behind the end. Returns its number."""
        self._place = offset + {SEEK_SET: 0, SEEK_CUR: self._place, SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fills the buffer, or as much of it as there is: HDF5 does not ask again for what a shorter answer lacks."""
        view = memoryview(buffer).cast("B")
        start, end = self._place, max(self._place, min(self._place + len(view), self._size))
        while self._place < end:
            number, inside = divmod(self._place, BLOCK)
            part = self._block(number)[inside : inside + end - self._place]
            view[self._place - start : self._place - start + len(part)] = part
            self._place += len(part)
        return end - start
