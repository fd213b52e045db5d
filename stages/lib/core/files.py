"""Write files that are complete or absent: under a temporary name, renamed when complete.

Outputs are links into DVC's cache. Renaming replaces the link; writing into it would change the
cached copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

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
    killed one left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = f".{uuid4().hex}" if shared else ""
    partial = path.with_name(f"{path.name}{unique}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
