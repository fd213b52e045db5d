"""Files that are whole or not there: written under a temporary name, renamed when done.

Renaming also matters because outputs are links into DVC's cache: writing into one would change the cached copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast
from uuid import uuid4

BLOCK = 1 << 18  # bytes asked of object storage at once: about a chunk of a store


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    shared: several processes, on several machines, may write the file at once, all of them the same. What a killed one leaves is
    otherwise written over by the next.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial" if shared else f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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
    return path if isinstance(path, Path) else path.open("rb", block_size=BLOCK, cache_type="blockcache")
