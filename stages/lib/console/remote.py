"""Push and pull the outputs that DVC keeps, and verify everything that comes back from the remote.

`make push` and `make pull` call this module.
A lock names a file by its MD5 sum, and a folder by the sum of a list: the names and sums of its
files. DVC verifies files only where the remote is configured with `verify = true`, and lists
nowhere. Whoever can write to the remote can thus take files out of a folder, or add files anywhere
in the project, such as a module that the next stage imports.

    python -m stages.lib.console.remote push python -m stages.lib.console.remote pull
    all outputs python -m stages.lib.console.remote pull SUBJECT               those of a subject,
    see `of_subject` python -m stages.lib.console.remote pull "" data/x/y.parquet   those in a file
    or folder

`pull` fetches the lists, keeps those that have the sum in the lock and harmless names, fetches the
files, keeps those that have their sums, and lets DVC check out the outputs of which nothing is
missing.
"""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from dvc.exceptions import DvcException
from dvc.fs.callbacks import TqdmCallback
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import Stage

from stages.lib.console import locks
from stages.lib.console.verify import file_sum

# chapters that bag and its explorer need, whatever subject they show
SHARED = ("corpus", "heuristics")
MD5 = re.compile(r"[0-9a-f]{32}")
NAMED = 5  # outputs that a message names


class RemoteError(SystemExit):
    """A failed push or pull; uncaught, it ends the program with its message and status 1."""


class ListError(ValueError):
    """A list of a folder's files that must not be checked out."""


@dataclass(frozen=True)
class Pulled:
    """An output, or a file or folder in it, to be pushed or pulled.

    path: its path; name: the same path, relative to the project.
    """

    output: Output
    path: Path
    name: str

    @property
    def is_folder(self) -> bool:
        return self.output.hash_info.isdir

    @property
    def sum(self) -> str:
        return self.output.hash_info.value


def main() -> None:
    command, subject, path, *_ = [*sys.argv[1:], "", "", ""]
    locks.main()
    try:
        repo = Repo()
        lines = push(repo) if command == "push" else pull(repo, subject, path)
    except DvcException as error:
        raise RemoteError(f"make {command}: {error}") from None
    print("\n".join(lines))


def push(repo: Repo) -> list[str]:
    """Push every output that the cache has whole. Return the lines to print."""
    outputs = [_wanted(repo, output) for output in _cached(repo.index.stages)]
    cache = Path(repo.cache.local.path)
    whole = [output.name for output in outputs if output.sum and _is_whole(output, cache)]
    pushed = repo.push(targets=whole) if whole else 0
    lines = [f"in the remote: {_count(whole)}, {pushed:,} files of them new"]
    if absent := [output for output in outputs if output.name not in whole]:
        count = _count(absent)
        lines.append(f"not made yet, and not in the remote: {count}; `make study` makes them")
    return lines


def pull(repo: Repo, subject: str = "", path: str = "") -> list[str]:
    """Fetch and check out what the remote has of a subject, a path, or everything.

    Return the lines to print. Raises RemoteError if the remote has nothing, and, once all other
    outputs are checked out, if it refused an object of the remote.
    """
    outputs = _selected(repo, subject, path)
    locked = [output for output in outputs if output.sum]
    cache = Path(repo.cache.local.path)
    false_lists = _fetch(repo, {output.sum for output in locked if output.is_folder}, "lists")
    # output -> the sums of its files, where its list is there and harmless
    sums: dict[str, set[str]] = {}
    refused: dict[str, str] = {}  # output -> why
    for output in locked:
        if output.sum in false_lists:
            refused[output.name] = "the remote's list of its files differs from the sum in the lock"
            continue
        try:
            sums[output.name] = set(_files(output, cache).values())
        except FileNotFoundError:
            continue  # the remote lacks the list
        except ListError as error:
            refused[output.name] = str(error)
    false = _fetch(repo, set().union(*sums.values()), "files")
    for name, its in sums.items():
        if its & false:
            refused[name] = "a file in the remote differs from the sum in the lock"
    whole = [name for name, its in sums.items() if all(_object(cache, md5).exists() for md5 in its)]
    if whole:
        repo.drop_data_index()  # DVC keeps the lists that it has read, false ones as well
        repo.checkout(targets=whole)
    return _report([output.name for output in outputs], whole, refused)


def _selected(repo: Repo, subject: str, path: str) -> list[Pulled]:
    """Return the outputs of a subject, or of all subjects, that are, hold or lie in a path.

    Raises RemoteError if there are none.
    """
    stages = of_subject(repo, subject) if subject else repo.index.stages
    outputs = [_wanted(repo, output) for output in _cached(stages)]
    if not path:
        return outputs
    absolute = Path(os.path.abspath(path))
    holding = [output for output in outputs if absolute.is_relative_to(output.path)]
    parts = [replace(output, path=absolute, name=path) for output in holding]
    parts = parts or [output for output in outputs if output.path.is_relative_to(absolute)]
    if not parts:
        way_out = "outputs are files and folders in data/ and reports/"
        raise RemoteError(f"make pull: no stage writes {path!r}; {way_out}")
    return parts


def _report(names: list[str], whole: list[str], refused: dict[str, str]) -> list[str]:
    """Return the lines that `pull` prints. Raises RemoteError if it refused or fetched nothing."""
    for name, why in refused.items():
        print(f"refused {name}: {why}", file=sys.stderr)
    if refused:
        problem = f"the remote has {_count(refused)} damaged or tampered with"
        way_out = "push them again from a project that has them (`make push`)"
        raise RemoteError(f"make pull: {problem}; {way_out}, or make them here (`dvc repro`)")
    lacking = [name for name in names if name not in whole]
    if not whole:
        way_out = "`make push` pushes them where they were made"
        raise RemoteError(f"make pull: the remote lacks all of {_some(lacking)}; {way_out}")
    lines = [f"pulled: {_count(whole)}"]
    if lacking:
        lines.append(f"not in the remote: {_some(lacking)}; `make study` makes them")
    return lines


def _count(outputs: Collection) -> str:
    return f"{len(outputs):,} output{'' if len(outputs) == 1 else 's'}"


def _some(names: list[str]) -> str:
    return f"{_count(names)} ({', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''})"


def of_subject(repo: Repo, subject: str) -> list[Stage]:
    """Return the stages that a subject's outputs come from or go to.

    These are its own stages, those that all subjects share, and the neighbours of its own among
    the stages of no subject: those that make what they read, such as the planted model, and those
    that read what they make, such as the report page. Raises RemoteError on an unknown subject.
    """
    stages = repo.index.stages
    own = [stage for stage in stages if stage.name.partition("@")[2] == subject]
    if not own:
        known = " ".join(sorted({stage.name.partition("@")[2] for stage in stages} - {""}))
        raise RemoteError(f"make pull: unknown subject {subject!r}; available subjects: {known}")
    made, read = _paths(own, "outs"), _paths(own, "deps")
    common = [stage for stage in stages if "@" not in stage.name]

    def is_wanted(stage: Stage) -> bool:
        is_neighbour = _touches(stage, "outs", read) or _touches(stage, "deps", made)
        return _is_shared(stage) or is_neighbour

    return own + [stage for stage in common if is_wanted(stage)]


def _is_shared(stage: Stage) -> bool:
    return Path(stage.path_in_repo).parent.name in SHARED


def _paths(stages: Iterable[Stage], kind: str) -> set[Path]:
    return {Path(entry.fs_path) for stage in stages for entry in getattr(stage, kind)}


def _touches(stage: Stage, kind: str, paths: Collection[Path]) -> bool:
    """Return whether an output or a dependency of the stage overlaps with one of these paths."""
    return any(_overlap(path, other) for path in _paths([stage], kind) for other in paths)


def _overlap(first: Path, second: Path) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)


def _cached(stages: Iterable[Stage]) -> Iterator[Output]:
    """Return the outputs that DVC keeps; Git keeps the others."""
    return (output for stage in stages for output in stage.outs if output.use_cache)


def _wanted(repo: Repo, output: Output) -> Pulled:
    path = Path(output.fs_path)
    return Pulled(output, path, str(path.relative_to(repo.root_dir)))


def _fetch(repo: Repo, sums: Collection[str], what: str) -> set[str]:
    """Fetch the objects that the cache lacks. Return those that have other bytes in the remote.

    The cache keeps none of these. Raises RemoteError if the remote cannot be reached.
    """
    cache = repo.cache.local
    for md5 in sums:
        # left there by `dvc pull` or `dvc fetch`
        if md5.endswith(".dir") and _is_false(Path(cache.oid_to_path(md5)), md5):
            Path(cache.oid_to_path(md5)).unlink()
    lacking = sorted(md5 for md5 in sums if not Path(cache.oid_to_path(md5)).exists())
    if not lacking:
        return set()
    remote = repo.cloud.get_remote_odb()
    failed: dict[str, BaseException] = {}
    with TqdmCallback(desc=f"Fetching {what}", unit="file") as bar:
        source = [remote.oid_to_path(md5) for md5 in lacking]
        cache.add(
            source,
            remote.fs,
            lacking,
            verify=True,
            check_exists=False,
            on_error=failed.__setitem__,
            callback=bar,
        )
    for error in failed.values():
        if not isinstance(error, FileNotFoundError):
            problem = f"{type(error).__name__}: {error}"
            raise RemoteError(f"make pull: the remote {remote.path} fails: {problem}")
    fetched = (md5 for md5 in lacking if md5 not in failed)
    return {md5 for md5 in fetched if _is_false(Path(cache.oid_to_path(md5)), md5, absent=True)}


def _is_false(path: Path, md5: str, absent: bool = False) -> bool:
    """Return whether a list in the cache has another sum than its name; `absent` if it is missing.

    Files are never false: DVC has verified them.
    """
    if not path.exists():
        return absent
    return md5.endswith(".dir") and file_sum(path) != md5.removesuffix(".dir")


def _is_whole(output: Pulled, cache: Path) -> bool:
    """Return whether the cache has the output; of a folder, its list and all files in the list."""
    try:
        return all(_object(cache, md5).exists() for md5 in _files(output, cache).values())
    except (FileNotFoundError, ListError):
        return False


def _object(cache: Path, md5: str) -> Path:
    return cache / md5[:2] / md5[2:]


def _files(output: Pulled, cache: Path) -> dict[Path, str]:
    """Return the sum of every wanted file of an output.

    Raises FileNotFoundError if the cache lacks a folder's list, and ListError if the list must not
    be checked out.
    """
    if not output.is_folder:
        return {output.path: output.sum}
    root = Path(output.output.fs_path)
    entries = listed(_object(cache, output.sum).read_bytes())
    files = {root / name: md5 for name, md5 in entries.items()}
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(root)}
    if link := next((folder for folder in sorted(folders) if folder.is_symlink()), None):
        problem = "is a symbolic link, through which files would be written elsewhere"
        raise ListError(f"{link} {problem}; remove it")
    return {file: md5 for file, md5 in files.items() if file.is_relative_to(output.path)}


def listed(content: bytes) -> dict[str, str]:
    """Return the files in DVC's list of a folder: name -> MD5 sum.

    Raises ListError on anything that DVC does not write into a list.
    """
    try:
        entries = json.loads(content)
        plain = [entry for entry in entries if entry.keys() == {"relpath", "md5"}]
        files = {entry["relpath"]: entry["md5"] for entry in plain}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ListError("the list of its files is not one that DVC wrote") from None
    if len(files) != len(entries):
        raise ListError("the list of its files names a file twice, or has more than names and sums")
    for name, md5 in files.items():
        if not _is_plain(name) or not MD5.fullmatch(str(md5)):
            problem = "which is no name within a folder, or no sum"
            raise ListError(f"the list of its files holds {name!r} with the sum {md5!r}, {problem}")
    return files


def _is_plain(name: object) -> bool:
    """Return whether this is a name such as add/0/000000.h5, which stays within its folder."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name or ":" in name:
        return False
    path = PurePosixPath(name)
    if path.is_absolute() or {"", ".", ".."} & {*path.parts}:
        return False
    return str(path) == name and name != "."


if __name__ == "__main__":
    main()
