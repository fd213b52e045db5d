"""Locks that were cut: DVC writes a lock in place after every stage, and whoever ends it then leaves a shorter one, or none.

`python -m stages.lib.console.locks`, which `make` and `make push` begin with, puts back what Git
knows; DVC then takes from its cache what has run since. DVC's note of what runs, if cut as well, is
removed. A merge conflict, in which DVC would read one side or none, and a project without Git end
the command with a message.
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


class LockError(ValueError):
    """A lock that says less than Git knows, or nothing."""


@dataclass(frozen=True)
class Cut:
    """A lock that was cut, or, if `merged`, one that holds a merge conflict.

    how: what is wrong with it; known: whether Git has it.
    """

    name: str
    how: str
    known: bool
    merged: bool = False

    def way_out(self) -> str:
        if self.merged:
            return conflict(self.name)
        back = f"`git checkout -- {self.name}` puts back the committed one" if self.known else f"remove it with `rm {self.name}`"
        return f"{self.name} {self.how}. {back}, and `dvc repro` takes from the cache what has run since"


def conflict(name: str) -> str:
    """Return what to do about a lock with a merge conflict."""
    return (
        f"{name} holds a conflict of a merge: `git checkout --theirs -- {name}` takes their "
        f"version, --ours yours, or `git checkout HEAD -- {name}` that of the last commit; "
        "then `dvc repro` makes what differs"
    )


def main() -> None:
    try:
        _check_git(Path())
    except LockError as error:
        raise SystemExit(str(error)) from None
    journal = Path(".dvc/tmp/rwlock")
    if all(_half_written(journal) for _ in range(100)):  # a DVC that is just writing it is done sooner
        journal.unlink()
        print(f"{journal}, in which DVC notes what runs, was half-written. It is removed.", file=sys.stderr)
    for lock in cut(Path()):
        if lock.merged:
            raise SystemExit(lock.way_out())
        if lock.known:
            subprocess.run(["git", "checkout", "--quiet", "--", lock.name], check=True)
        else:
            Path(lock.name).unlink()
        done = "put back as committed" if lock.known else "removed"
        print(f"{lock.name} {lock.how}. It is {done}; DVC takes from its cache what has run since.", file=sys.stderr)


def _half_written(journal: Path) -> bool:
    try:
        if not journal.exists():
            return False
        return not isinstance(json.loads(journal.read_text(encoding="utf-8")), dict)
    except ValueError:
        return True


def check(root: Path) -> None:
    """Raise LockError if a lock was cut or holds a conflict, or if there is no Git repository."""
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
    """Every lock that was cut. Git remembers how it was."""
    for file in (root / "dvc.lock", *sorted((root / "stages").rglob("dvc.lock"))):
        name = str(file.relative_to(root))
        shown = _git(root, "show", f"HEAD:./{name}")
        is_known = shown.returncode == 0
        known = _outputs(shown.stdout) if is_known and not CONFLICT.search(shown.stdout) else {}
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else None
            if text and CONFLICT.search(text):
                yield Cut(name, "holds a conflict of a merge", is_known, merged=True)
                continue
            here = _outputs(text) if text is not None else {}
        except (yaml.YAMLError, TypeError, KeyError, AttributeError, UnicodeDecodeError):
            yield Cut(name, "cannot be read: it was cut while it was written", is_known)
            continue
        last = next(reversed(here), "")
        half = last if last and here[last] < max(1, known.get(last, 1)) else None
        if lost := sorted({stage for stage in known if stage not in here or stage == half}):
            some = ", ".join(lost[:3]) + (", …" if len(lost) > 3 else "")
            yield Cut(name, f"lacks {len(lost)} of the {len(known)} stages that Git knows it with ({some}): it was cut", known=True)
        elif half:
            yield Cut(name, f"ends in the midst of {half}: it was cut", is_known)


def _outputs(lock: str) -> dict[str, int]:
    """Of how many outputs a lock has the sums, by stage; 0 of one that is half-written. That can only be the last one, so only that is
    parsed, and all others count as 1: together, locks have tens of thousands of lines."""
    starts = list(STAGE.finditer(lock))
    counts = {start[1]: 1 for start in starts}
    try:
        last = _stages("stages:\n" + lock[starts[-1].start() :] if starts else lock)
    except yaml.YAMLError:  # it may refer to something in front of it
        last = _stages(lock)
    for name, entry in list(last.items())[-1:]:
        outs = (entry or {}).get("outs") or []
        whole = lock.endswith("\n") and all("md5" in out and "size" in out for out in outs)
        counts[name] = len(outs) if whole else 0
    return counts


def _stages(text: str) -> dict[str, Any]:
    return yaml.load(text, yaml.CSafeLoader)["stages"]


if __name__ == "__main__":
    main()
