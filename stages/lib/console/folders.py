"""Folders that differ from their lock, such as a store of three files where the lock lists four.

`make pull FILE=…` may have fetched a part, or plain `dvc pull` what somebody changed in the remote.
A query answers from the files that are there, and `bag` says so.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stages.lib.console.locks import CONFLICT, conflict
from stages.lib.core.files import PARTS

# as DVC writes them
OUTPUTS = re.compile(r"^    outs:\n((?:    - .*\n|      .*\n)+)", re.MULTILINE)
FOLDER = re.compile(r"    - path: (.+)\n      hash: md5\n      md5: \w+\.dir\n      size: (\d+)\n      nfiles: (\d+)\n")


@dataclass(frozen=True)
class Locked:
    """A folder that a stage writes, as its lock knows it. size: bytes of all its files."""

    path: str
    size: int
    files: int


def unlike_lock(query: str, data: Path) -> Iterator[str]:
    """One line for each folder of a table that the query may name that is here and has other files than its lock says, and for each lock
    with a conflict of a merge."""
    if not isinstance(data, Path):  # object storage has no locks
        return
    root = data.parent
    for name, text in _locks(root):
        if CONFLICT.search(text):
            yield conflict(name)
    for locked in _locked(root):
        folder = root / locked.path
        if folder.name not in query.lower() or not folder.is_relative_to(data) or not folder.is_dir():
            continue
        files = [path for path in folder.rglob("*") if path.is_file() and not _is_partial(path)]
        size = sum(path.stat().st_size for path in files)
        if len(files) != locked.files:
            way_out = f"`make pull FILE={locked.path}` fetches what is missing, `bag verify` names what is too much"
            yield f"{locked.path} has {len(files):,} files, its lock lists {locked.files:,}: this answer is from those here; {way_out}"
        elif size != locked.size:
            yield f"{locked.path} has {size:,} bytes, its lock says {locked.size:,}; `bag verify` names the files that differ"


def _is_partial(path: Path) -> bool:
    return path.suffix == ".partial" or any(folder.suffix == PARTS for folder in path.parents)


def _locked(root: Path) -> Iterator[Locked]:
    """Every folder among the outputs in the locks, which have too many lines to be parsed as YAML in front of a query."""
    for _, text in _locks(root):
        for section in OUTPUTS.findall(text):
            yield from (Locked(path, int(size), int(files)) for path, size, files in FOLDER.findall(section))


def _locks(root: Path) -> Iterator[tuple[str, str]]:
    """The name and text of every lock that can be read; `bag verify` says what is wrong with the others."""
    for lock in (root / "dvc.lock", *sorted((root / "stages").rglob("dvc.lock"))):
        with suppress(OSError, UnicodeDecodeError):
            yield str(lock.relative_to(root)), lock.read_text(encoding="utf-8")
