"""Read files of this machine and of object storage alike."""

from functools import lru_cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from pyarrow import NativeFile

BLOCK = 1 << 18  # bytes of a request to object storage: about a chunk of a store
KEPT = 32  # blocks kept of a file


def place(path: Path | str) -> Path:
    """Return a path of this machine, or of object storage, such as s3://bucket/folder.

    Raises ValueError or ImportError if this kind of storage is not supported.
    """
    if "://" not in str(path):
        return Path(path)
    from upath import UPath  # only here: clients of storage are slow to import

    return cast("Path", UPath(str(path)))


def pieces(path: Path) -> Path | BinaryIO:
    """Return what libraries that read a file in pieces take: its path, or a file of storage.

    A file of storage keeps the blocks that were read.
    """
    if isinstance(path, Path):
        return path
    from pyarrow.fs import FileSystem  # only here: it is slow to import

    storage, name = FileSystem.from_uri(str(path))
    return cast("BinaryIO", BlockFile(storage.open_input_file(name)))


class BlockFile(RawIOBase):
    """A file of object storage, read in blocks, of which the last KEPT stay in memory.

    Its requests run in pyarrow's own threads, which never wait for a thread of Python. HDF5 reads
    under a lock. A Python thread that answers would have to take this lock as well when it
    collects HDF5's garbage.
    """

    def __init__(self, file: "NativeFile"):
        self._size, self._place = file.size(), 0

        def read(number: int) -> bytes:
            start = number * BLOCK
            return file.read_at(min(BLOCK, self._size - start), start)

        self._block = lru_cache(KEPT)(read)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Move to a byte, which may lie after the end. Return its number."""
        self._place = offset + {SEEK_SET: 0, SEEK_CUR: self._place, SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer, or as much of it as the file has left. Return the number of bytes.

        HDF5 does not ask again for bytes that a shorter answer lacks.
        """
        view = memoryview(buffer).cast("B")
        start, end = self._place, max(self._place, min(self._place + len(view), self._size))
        while self._place < end:
            number, inside = divmod(self._place, BLOCK)
            part = self._block(number)[inside : inside + end - self._place]
            view[self._place - start : self._place - start + len(part)] = part
            self._place += len(part)
        return end - start
