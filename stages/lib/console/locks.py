"""Find and restore locks that were cut off while DVC wrote them.

DVC writes a lock in place after every stage. If DVC is killed meanwhile, the lock is shorter or
empty. `make` and `make push` first run `python -m stages.lib.console.locks`:
* It restores the committed lock; DVC then takes later results from its cache.
* It removes DVC's journal of running stages if that was cut off, too.
* It ends the command with a message if a lock has a merge conflict, of which DVC would read one
  side or none, or if there is no Git repository.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFLICT = re.compile(r"^(<<<<<<<|>>>>>>>)", re.MULTILINE)
STAGE = re.compile(r"^  (\S[^\n]*):$", re.MULTILINE)  # as DVC writes a stage's name
NAMED = 3  # lost stages that a message names


class LockError(ValueError):
    """A lock that is unreadable or lacks stages of its committed version, or no Git repository."""


@dataclass(frozen=True)
class Cut:
    """A lock that was cut off, or, if `merged`, one with a merge conflict.

    how: what is wrong with it; known: whether Git has it.
    """

    name: str
    how: str
    known: bool
    merged: bool = False

    def way_out(self) -> str:
        if self.merged:
            return conflict(self.name)
        way_out = f"remove it with `rm {self.name}`"
        if self.known:
            way_out = f"restore the committed lock with `git checkout -- {self.name}`"
        return (
            f"{self.name} {self.how}: {way_out}, and `dvc repro` takes later results from its cache"
        )


def conflict(name: str) -> str:
    """Return what to do about a lock with a merge conflict."""
    return (
        f"{name} has a merge conflict: `git checkout --theirs -- {name}` takes their version, "
        f"`git checkout --ours -- {name}` takes yours, `git checkout HEAD -- {name}` that of the "
        "last commit; then `dvc repro` makes what differs"
    )


def main() -> None:
    try:
        _check_git(Path())
    except LockError as error:
        raise SystemExit(str(error)) from None
    journal = Path(".dvc/tmp/rwlock")
    # many times, as a running DVC may just be writing it
    if all(_half_written(journal) for _ in range(100)):
        journal.unlink()
        print(f"removed {journal}, DVC's journal, which was cut off", file=sys.stderr)
    for lock in cut(Path()):
        if lock.merged:
            raise SystemExit(lock.way_out())
        if lock.known:
            subprocess.run(["git", "checkout", "--quiet", "--", lock.name], check=True)
        else:
            Path(lock.name).unlink()
        done = "restored the committed lock" if lock.known else "removed the lock"
        after = "DVC takes later results from its cache"
        print(f"{lock.name} {lock.how}: {done}; {after}", file=sys.stderr)


def _half_written(journal: Path) -> bool:
    try:
        if not journal.exists():
            return False
        return not isinstance(json.loads(journal.read_text(encoding="utf-8")), dict)
    except ValueError:
        return True


def check(root: Path) -> None:
    """Raise LockError if a lock is cut off or has a conflict, or if there is no Git repository."""
    _check_git(root)
    for lock in cut(root):
        raise LockError(lock.way_out())


def _check_git(root: Path) -> None:
    """Raise LockError if DVC would find no Git repository and is not set to do without."""
    config = ConfigParser()
    config.read([root / ".dvc/config", root / ".dvc/config.local"], encoding="utf-8")
    if config.get("core", "no_scm", fallback="false").lower() == "true":
        return
    done = _git(root, "rev-parse", "--git-dir")
    if done.returncode:
        why = done.stderr.strip().splitlines()[0]
        way_out = "`git init` makes one, or `dvc config core.no_scm true` lets it do without"
        raise LockError(f"DVC needs a Git repository ({why}): {way_out}")


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Git; return status 127 if it is not installed."""
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(arguments, 127, "", "git is not installed")


def cut(root: Path) -> Iterator[Cut]:
    """Yield every lock that was cut off or has a conflict, compared with its committed version."""
    for file in (root / "dvc.lock", *sorted((root / "stages").rglob("dvc.lock"))):
        name = str(file.relative_to(root))
        shown = _git(root, "show", f"HEAD:./{name}")
        is_known = shown.returncode == 0
        committed: dict[str, int] = {}
        if is_known and not CONFLICT.search(shown.stdout):
            committed = _outputs(shown.stdout)
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else None
            if text and CONFLICT.search(text):
                yield Cut(name, "has a merge conflict", is_known, merged=True)
                continue
            present = {} if text is None else _outputs(text)
        except (yaml.YAMLError, TypeError, KeyError, AttributeError, UnicodeDecodeError):
            yield Cut(name, "cannot be read, as it was cut off", is_known)
            continue
        last = next(reversed(present), "")
        is_half = last and present[last] < max(1, committed.get(last, 1))
        whole = present.keys() - {last} if is_half else present.keys()
        lost = sorted(committed.keys() - whole)
        if lost:
            listed = ", ".join(lost[:NAMED]) + (", …" if len(lost) > NAMED else "")
            problem = f"lacks {len(lost)} of the {len(committed)} stages that are committed"
            yield Cut(name, f"{problem} ({listed}), as it was cut off", known=True)
        elif is_half:
            yield Cut(name, f"ends within the stage {last}, as it was cut off", is_known)


def _outputs(lock: str) -> dict[str, int]:
    """Return how many outputs of each stage have sums in a lock, 0 if the stage is incomplete.

    Only the last stage can be incomplete. So only that is parsed, and all others count as 1:
    together, locks have tens of thousands of lines.
    """
    starts = list(STAGE.finditer(lock))
    counts = {start[1]: 1 for start in starts}
    try:
        last = _stages("stages:\n" + lock[starts[-1].start() :] if starts else lock)
    except yaml.YAMLError:  # it may refer to an anchor before it
        last = _stages(lock)
    for name, entry in list(last.items())[-1:]:
        outs = (entry or {}).get("outs") or []
        is_whole = lock.endswith("\n") and all({"md5", "size"} <= out.keys() for out in outs)
        counts[name] = len(outs) if is_whole else 0
    return counts


def _stages(text: str) -> dict[str, Any]:
    return yaml.load(text, yaml.CSafeLoader)["stages"]


if __name__ == "__main__":
    main()
