"""Find folders that differ from their lock, such as a store of three files whose lock lists four.

`make pull FILE=…` may have fetched a part, or plain `dvc pull` what somebody changed in the remote.
A query reads the files that exist, and `bag` warns of the difference.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stages.lib.console.locks import CONFLICT, conflict
from stages.lib.core.files import PARTS

# The outputs of a stage, and a folder among them, as DVC writes them into a lock.
OUTPUTS = re.compile(r"^    outs:\n((?:    - .*\n|      .*\n)+)", re.MULTILINE)
KEYS = (r"    - path: (.+)", "hash: md5", r"md5: \w+\.dir", r"size: (\d+)", r"nfiles: (\d+)")
FOLDER = re.compile("\n      ".join(KEYS) + "\n")


@dataclass(frozen=True)
class Locked:
    """A folder that a stage writes, as its lock describes it. size: bytes of all its files."""

    path: str
    size: int
    files: int


def unlike_lock(query: str, data: Path) -> Iterator[str]:
    """Yield a warning for each table folder that the query may name and that differs from its lock.

    Yield a warning for each lock with a merge conflict as well.
    """
    if not isinstance(data, Path):  # object storage has no locks
        return
    root = data.parent
    for name, text in _locks(root):
        if CONFLICT.search(text):
            yield conflict(name)
    for locked in _locked(root):
        folder = root / locked.path
        is_table = folder.is_relative_to(data) and folder.is_dir()
        if folder.name not in query.lower() or not is_table:
            continue
        files = [path for path in folder.rglob("*") if path.is_file() and not _is_partial(path)]
        size = sum(path.stat().st_size for path in files)
        if len(files) != locked.files:
            problem = f"{locked.path} has {len(files):,} files, its lock lists {locked.files:,}"
            pull = f"`make pull FILE={locked.path}` fetches missing files"
            verify = "`bag verify` names extra files"
            yield f"{problem}: this answer is from the present files; {pull}, {verify}"
        elif size != locked.size:
            problem = f"{locked.path} has {size:,} bytes, its lock says {locked.size:,}"
            yield f"{problem}; `bag verify` names the files that differ"


def _is_partial(path: Path) -> bool:
    return path.suffix == ".partial" or any(folder.suffix == PARTS for folder in path.parents)


def _locked(root: Path) -> Iterator[Locked]:
    """Yield every folder among the outputs in the locks.

    The locks have too many lines to parse them as YAML before every query.
    """
    for _, text in _locks(root):
        for section in OUTPUTS.findall(text):
            for path, size, files in FOLDER.findall(section):
                yield Locked(path, int(size), int(files))


def _locks(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and text of every readable lock; `bag verify` reports the other locks."""
    for lock in (root / "dvc.lock", *sorted((root / "stages").rglob("dvc.lock"))):
        with suppress(OSError, UnicodeDecodeError):
            yield str(lock.relative_to(root)), lock.read_text(encoding="utf-8")
