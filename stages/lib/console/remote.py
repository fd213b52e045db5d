"""Push and pull the outputs that DVC keeps, and verify everything that comes back from the remote.

`make push` and `make pull` call this module:

    python -m stages.lib.console.remote push                    # all outputs
    python -m stages.lib.console.remote pull                    # all outputs
    python -m stages.lib.console.remote pull SUBJECT            # a subject's, see `of_subject`
    python -m stages.lib.console.remote pull "" data/x/y.parquet    # those in a file or folder

A lock names a file by its MD5 sum, and a folder by the sum of a list: the names and sums of its
files. DVC verifies files only where the remote is configured with `verify = true`, and lists
nowhere. Whoever can write to the remote can thus take files out of a folder, or add files anywhere
in the project, such as a module that the next stage imports.

`pull` fetches the lists, and keeps those that have the sum in the lock and harmless names. Then it
fetches the files, and keeps those that have their sums. DVC then checks out the complete outputs.
"""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath

from dvc.exceptions import ConfirmRemoveError, DvcException
from dvc.fs.callbacks import TqdmCallback
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import Stage

from stages.lib.console import locks
from stages.lib.console.verify import file_sum, object_of

# chapters that bag and its explorer need, whatever subject they show
SHARED = ("corpus", "heuristics")
MD5 = re.compile(r"[0-9a-f]{32}")
NAMED = 5  # outputs that a message names


class RemoteError(SystemExit):
    """A failed push or pull; uncaught, it ends the program with its message and status 1."""


class ListError(ValueError):
    """A list of a folder's files that must not be checked out."""


@dataclass(frozen=True)
class Source:
    """A remote, and what messages say about it.

    remote: its name, None for the default remote; command: which fetches from it; place: what
    messages call it; repair: what to do if it is damaged; fill: what to do if it is empty.
    """

    remote: str | None
    command: str
    place: str
    repair: str
    fill: str


STORAGE = Source(
    remote=None,
    command="make pull",
    place="the remote",
    repair="push them again from a project that has them (`make push`)",
    fill="`make push` pushes them where they were made",
)


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

    @property
    def size(self) -> int:
        """Return the bytes of the whole output, 0 if no lock says it."""
        return self.output.meta.size or 0


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
    outputs = cached(repo, repo.index.stages)
    cache = Path(repo.cache.local.path)
    whole = [output.name for output in outputs if output.sum and is_whole(output, cache)]
    pushed = repo.push(targets=whole) if whole else 0
    lines = [f"in the remote: {_count(len(whole))}, {pushed:,} files of them new"]
    if len(whole) < len(outputs):
        count = _count(len(outputs) - len(whole))
        lines.append(f"not made yet, and not in the remote: {count}; `make study` makes them")
    return lines


def pull(repo: Repo, subject: str = "", path: str = "") -> list[str]:
    """Fetch and check out what the remote has of a subject, a path, or everything; see `fetch`."""
    return fetch(repo, _selected(repo, subject, path), STORAGE)


def fetch(repo: Repo, outputs: list[Pulled], source: Source) -> list[str]:
    """Fetch and check out what a remote has of these outputs.

    Return the lines to print. Raises RemoteError if the remote has nothing, and, once all other
    outputs are checked out, if it refused an object of the remote or edited files are in the way.
    """
    locked = list(filter(attrgetter("sum"), outputs))
    folders = filter(attrgetter("is_folder"), locked)
    cache = Path(repo.cache.local.path)
    false_lists = _fetch(repo, set(map(attrgetter("sum"), folders)), "lists", source)
    # output -> the sums of its files, where its list is there and harmless
    sums: dict[str, set[str]] = {}
    refused: dict[str, str] = {}  # output -> why
    for output in locked:
        if output.sum in false_lists:
            why = "list of its files differs from the sum in the lock"
            refused[output.name] = f"{source.place}'s {why}"
            continue
        try:
            sums[output.name] = set(files_of(output, cache).values())
        except FileNotFoundError:
            continue  # the remote lacks the list
        except ListError as error:
            refused[output.name] = str(error)
    false = _fetch(repo, set().union(*sums.values()), "files", source)
    whole: list[str] = []
    edited: list[str] = []
    for name, needed in sums.items():
        if needed & false:
            refused[name] = f"a file in {source.place} differs from the sum in the lock"
        if _has_all(cache, needed):
            whole.append(name)
    if whole:
        repo.drop_data_index()  # DVC keeps the lists that it has read, false ones as well
        edited = _check_out(repo, [output for output in locked if output.name in whole])
    return _report(list(map(attrgetter("name"), outputs)), whole, edited, refused, source)


def _check_out(repo: Repo, outputs: list[Pulled]) -> list[str]:
    """Link outputs from the cache; `repo.checkout` would read all locks again for each of them.

    Return the outputs that stay as they are: their files were edited, and the cache lacks the
    edited content.
    """
    edited: list[str] = []
    with repo.lock:
        for output in outputs:
            try:
                output.output.checkout(filter_info=str(output.path))
            except ConfirmRemoveError:
                edited.append(output.name)
    return edited


def _selected(repo: Repo, subject: str, path: str) -> list[Pulled]:
    """Return the outputs of a subject, or of all subjects, that are, hold or lie in a path.

    Raises RemoteError if there are none.
    """
    stages = of_subject(repo, subject) if subject else repo.index.stages
    outputs = cached(repo, stages)
    if not path:
        return outputs
    absolute = Path(os.path.abspath(path))
    parts: list[Pulled] = []
    inside: list[Pulled] = []
    for output in outputs:
        if absolute.is_relative_to(output.path):
            parts.append(replace(output, path=absolute, name=path))
        elif output.path.is_relative_to(absolute):
            inside.append(output)
    if not parts and not inside:
        way_out = "outputs are files and folders in data/ and reports/"
        raise RemoteError(f"make pull: no stage writes {path!r}; {way_out}")
    return parts or inside


def _report(
    names: list[str],
    whole: list[str],
    edited: list[str],
    refused: dict[str, str],
    source: Source,
) -> list[str]:
    """Return the lines that `fetch` prints.

    Raises RemoteError if it refused outputs, left edited ones as they are, or fetched nothing.
    """
    problems: list[str] = []
    for name, why in refused.items():
        print(f"refused {name}: {why}", file=sys.stderr)
    if refused:
        problem = f"{source.place} has {_count(len(refused))} damaged or tampered with"
        problems.append(f"{problem}; {source.repair}, or make them here (`dvc repro`)")
    if edited:
        problem = f"{some(edited)} with changes that the cache lacks would be overwritten"
        problems.append(f"{problem}; move them elsewhere or remove them, and repeat the command")
    if problems:
        raise RemoteError(f"{source.command}: {'. '.join(problems)}")
    lacking = [name for name in names if name not in whole]
    if not whole:
        problem = f"{source.place} has none of {some(lacking)}"
        raise RemoteError(f"{source.command}: {problem}; {source.fill}")
    lines = [f"pulled: {_count(len(whole))}"]
    if lacking:
        lines.append(f"not in {source.place}: {some(lacking)}; `make study` makes them")
    return lines


def _count(number: int) -> str:
    return "1 output" if number == 1 else f"{number:,} outputs"


def some(names: list[str]) -> str:
    more = ", …" if len(names) > NAMED else ""
    return f"{_count(len(names))} ({', '.join(names[:NAMED])}{more})"


def of_subject(repo: Repo, subject: str) -> list[Stage]:
    """Return the stages that a subject's outputs come from or go to.

    These are its own stages, those that all subjects share, and the neighbours of its own among
    the stages of no subject: those that make what they read, such as the planted model, and those
    that read what they make, such as the report page. Raises RemoteError on an unknown subject.
    """
    stages = repo.index.stages
    by_subject: dict[str, list[Stage]] = {}  # "" for the stages of no subject
    for stage in stages:
        by_subject.setdefault(stage.name.partition("@")[2], []).append(stage)
    common = by_subject.pop("", [])
    if subject not in by_subject:
        known = " ".join(sorted(by_subject))
        raise RemoteError(f"make pull: unknown subject {subject!r}; available subjects: {known}")
    own = by_subject[subject]
    written, read = _paths(own, "outs"), _paths(own, "deps")
    wanted = list(own)
    for stage in common:
        is_shared = Path(stage.path_in_repo).parent.name in SHARED
        if is_shared or _touches(stage, "outs", read) or _touches(stage, "deps", written):
            wanted.append(stage)
    return wanted


def _paths(stages: Iterable[Stage], kind: str) -> set[Path]:
    """Return the paths of the stages' outputs (kind "outs") or dependencies ("deps")."""
    paths: set[Path] = set()
    for stage in stages:
        paths.update(Path(entry.fs_path) for entry in getattr(stage, kind))
    return paths


def _touches(stage: Stage, kind: str, paths: Collection[Path]) -> bool:
    """Return whether an output or dependency of a stage is, holds or lies in one of the paths."""
    for path in _paths([stage], kind):
        for other in paths:
            if path.is_relative_to(other) or other.is_relative_to(path):
                return True
    return False


def cached(repo: Repo, stages: Iterable[Stage]) -> list[Pulled]:
    """Return the outputs that DVC keeps; Git keeps the others."""
    outputs = []
    for stage in stages:
        for output in filter(attrgetter("use_cache"), stage.outs):
            path = Path(output.fs_path)
            outputs.append(Pulled(output, path, str(path.relative_to(repo.root_dir))))
    return outputs


def _fetch(repo: Repo, sums: Collection[str], what: str, source: Source) -> set[str]:
    """Fetch the objects that the cache lacks. Return those that have other bytes in the remote.

    The cache keeps none of these. Raises RemoteError if the remote cannot be reached.
    """
    cache = repo.cache.local
    path_of = partial(object_of, Path(cache.path))
    for md5 in filter(_is_list, sums):
        # left there by `dvc pull` or `dvc fetch`
        if path_of(md5).exists() and _is_false(path_of(md5)):
            path_of(md5).unlink()
    lacking = sorted(md5 for md5 in sums if not path_of(md5).exists())
    if not lacking:
        return set()
    remote = repo.cloud.get_remote_odb(source.remote)
    failed: dict[str, BaseException] = {}
    with TqdmCallback(desc=f"Fetching {what}", unit="file") as bar:
        cache.add(
            list(map(remote.oid_to_path, lacking)),
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
            raise RemoteError(f"{source.command}: {source.place} {remote.path} fails: {problem}")
    false: set[str] = set()
    for md5 in lacking:
        # DVC removes a file, but not a list, whose sum is wrong
        if md5 not in failed and (not path_of(md5).exists() or _is_false(path_of(md5))):
            false.add(md5)
    return false


def _is_list(md5: str) -> bool:
    """Return whether a sum is that of a folder's list."""
    return md5.endswith(".dir")


def _is_false(path: Path) -> bool:
    """Return whether a list in the cache has another sum than its name says.

    Files are never false: DVC has verified them.
    """
    return _is_list(path.name) and file_sum(path) != (path.parent.name + path.name)[: -len(".dir")]


def is_whole(output: Pulled, cache: Path) -> bool:
    """Return whether the cache has the output; for a folder, its list and all files in the list."""
    try:
        return _has_all(cache, files_of(output, cache).values())
    except (FileNotFoundError, ListError):
        return False


def _has_all(cache: Path, sums: Iterable[str]) -> bool:
    return all(object_of(cache, md5).exists() for md5 in sums)


def files_of(output: Pulled, cache: Path) -> dict[Path, str]:
    """Return the sum of every wanted file of an output.

    Raises FileNotFoundError if the cache lacks a folder's list, and ListError if the list must not
    be checked out.
    """
    if not output.is_folder:
        return {output.path: output.sum}
    root = Path(output.output.fs_path)
    entries = listed(object_of(cache, output.sum).read_bytes())
    files: dict[Path, str] = {}
    for name, md5 in entries.items():
        file = root / name
        _check_links(file, root)
        if file.is_relative_to(output.path):
            files[file] = md5
    return files


def _check_links(file: Path, root: Path) -> None:
    """Raise ListError if `root` or a folder in it on the way to a file is a symbolic link."""
    for folder in file.parents:
        if folder.is_relative_to(root) and folder.is_symlink():
            problem = "is a symbolic link, through which files would be written elsewhere"
            raise ListError(f"{folder} {problem}; remove it")


def listed(content: bytes) -> dict[str, str]:
    """Return the files in DVC's list of a folder: name -> MD5 sum.

    Raises ListError on anything that DVC does not write into a list.
    """
    try:
        entries = json.loads(content)
        files = {entry["relpath"]: entry["md5"] for entry in entries}
        is_plain = all(len(entry) == 2 for entry in entries)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ListError("the list of its files is not one that DVC wrote") from None
    if len(files) != len(entries) or not is_plain:
        raise ListError("the list of its files names a file twice, or has more than names and sums")
    for name, md5 in files.items():
        if not _is_plain(name) or not MD5.fullmatch(str(md5)):
            problem = "which is not a name within a folder, or not a sum"
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
