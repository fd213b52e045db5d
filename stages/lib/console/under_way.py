"""Warn of tables that a running stage is making: DVC removes its last outputs before it runs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from stages.lib.sql.files import files_of


def under_way(query: str, data: Path) -> Iterator[str]:
    """Yield a warning for each output of a running stage in a table that the query may name.

    DVC's journal lists the running stages.
    """
    journal = data.parent / ".dvc/tmp/rwlock"
    try:
        writing = json.loads(journal.read_text(encoding="utf-8"))["write"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no stage runs, or DVC is just writing the journal
    root = data.absolute().parent
    for output, running in writing.items():
        path = Path(output)
        if path.is_relative_to(data.absolute()) and _runs(running["pid"]):
            # a folder stands for the stores that will be in it
            file = path if path.suffix else path / "any.h5"
            for table in files_of([file], data.absolute()):
                if table in query.lower():
                    command = Path(running["cmd"].split()[0]).name
                    process = f"`{command} …` (process {running['pid']})"
                    problem = f"{process} is making {path.relative_to(root)}"
                    yield f"{problem}: this answer is without it"


def _runs(process: int) -> bool:
    """Return whether a process runs, even if another user owns it."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
