"""Files that are whole or not there: written under a temporary name, renamed when done.

Renaming also matters because outputs are links into DVC's cache: writing into one would change the cached copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

PARTS = (
    ".parts"  # ends the names of folders in which stages that run keep what they have done so far
)


def way_out(path: Path) -> str:
    """How a file that is damaged, or not there, comes back, to end a message with. A part of a stage that was stopped is not DVC's yet."""
    if any(folder.suffix == PARTS for folder in path.parents):
        return "remove it, and the stage makes it again when it goes on"
    heal = "`bag verify --heal` takes it and DVC's copy of it away"
    return f"{heal}, then `dvc repro` makes it again, or `make pull` fetches it"


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    shared: several processes, on several machines, may write the file at once, all of them the same. What a killed one leaves is
    otherwise written over by the next.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(
        f"{path.name}.{uuid4().hex}.partial" if shared else f"{path.name}.partial"
    )
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
