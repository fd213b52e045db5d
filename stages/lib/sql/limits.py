"""Bound what one query may take: memory, and disk for rows that do not fit into memory."""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

PART = 4  # a connection takes at most this part of the memory
SPILLED = 16 << 30  # bytes on disk at most, and never more than half of what is free
GROUPS = Path("/sys/fs/cgroup")
PREFIX, OWNER = "bag-spilled-", "owner"  # of folders, and the file that their process locks
_number = count()


def limits() -> dict[str, str]:
    """Return the settings of the engine for a user's connection, in the order in which to set them.

    The folder for spilled rows comes before its size: setting the folder resets the size.
    """
    folder = _folder(os.getpid())
    free = shutil.disk_usage(folder).free
    return {
        "memory_limit": f"{memory() // PART >> 20}MiB",
        "temp_directory": str(folder / str(next(_number))),  # two connections must not share one
        "max_temp_directory_size": f"{min(SPILLED, free // 2) >> 20}MiB",
    }


def memory() -> int:
    """Return the bytes of memory of this machine, or of the container if it may use less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed()])


def _allowed() -> Iterator[int]:
    """Yield the memory limits of the control groups that this process is in, of either version."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        kind, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        group = GROUPS / kind / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(GROUPS):
                for text in _lines(folder / name):
                    with suppress(ValueError):  # "max" stands for no limit
                        yield int(text)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


@cache
def _folder(process: int) -> Path:
    """Make a private folder for spilled rows, outside the project; process exit removes it.

    What a killed process could not remove, the next process does. The system ends a process's lock
    with the process, however that ends, so an unlocked file means an ended owner.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with suppress(OSError):  # a file system without locks: nothing tells when the owner has ended
        # The file stays open, and so locked, until the process ends.
        owner = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
        (folder / "new").rename(folder / OWNER)

    def remove() -> None:
        if os.getpid() == process:  # a fork of this process must not remove it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _remove_abandoned() -> None:
    """Remove the folders of processes of this user that have ended."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("r+b") as file:  # another user's, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)


def remove_spilled() -> None:
    """Remove the spilled rows of this process at once, for an end that runs no exit handlers."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(os.getpid()), ignore_errors=True)
