"""Write files that are complete or absent: under a temporary name, renamed when complete.

Outputs are links into DVC's cache. Renaming replaces the link; writing into it would change the
cached copy.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
PARTS = ".parts"  # suffix of the folders in which running stages keep their unfinished work


def way_out(path: Path) -> str:
    """Return how to restore a file that is damaged or missing, as the end of a message.

    DVC does not know the unfinished work of a stage that was stopped.
    """
    if any(folder.suffix == PARTS for folder in path.parents):
        return "remove it, and the stage makes it again when it resumes"
    heal = "`bag verify --heal` removes it and DVC's copy of it"
    return f"{heal}, then `dvc repro` makes it again, or `make pull` fetches it"


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`. Rename it to `path` after the block, or remove it.

    It is removed if the block raises. shared: several processes, on several machines, may write
    the file at once, all with the same content. Otherwise the next process overwrites what a
    killed one left. Raises SystemExit with a message if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = f".{uuid4().hex}" if shared else ""
    partial = path.with_name(f"{path.name}{unique}.partial")
    try:
        yield partial
        partial.replace(path)
    except Exception as error:
        if is_full(error):
            raise SystemExit(full(path)) from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def full(path: Path) -> str:
    """Return the message about a disk without room for a file."""
    way_out = "free some space, then run the same command again: what is finished stays"
    return f"{path}: no space left on the disk; {way_out}"


def is_full(error: Exception) -> bool:
    """Return whether a disk had no room. Polars, DuckDB and HDF5 say so in their messages only."""
    of_system = isinstance(error, OSError) and error.errno in NO_SPACE
    return of_system or "No space left on device" in str(error)
