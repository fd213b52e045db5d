"""Tables that are being made while they are asked: DVC takes a stage's last output away before the stage runs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from stages.lib.sql.files import files_of


def under_way(query: str, data: Path) -> Iterator[str]:
    """One line for each output of a running stage that belongs to a table which the query may name; DVC's notes say which run."""
    try:
        writing = json.loads((data.parent / ".dvc/tmp/rwlock").read_text(encoding="utf-8"))["write"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # none runs, or the note is just being written
    for output, of in writing.items():
        path = Path(output)
        if not path.is_relative_to(data.absolute()) or not _runs(of["pid"]):
            continue
        table = next(
            iter(files_of([path / "any.h5" if not path.suffix else path], data.absolute())), ""
        )
        if table and table in query.lower():
            name = path.relative_to(data.absolute().parent)
            yield f"{name} is just being made, by `{Path(of['cmd'].split()[0]).name} …` (process {of['pid']}): this answer is without it"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is someone else's
        return True
    return True
