"""`bag verify`: whether outputs, DVC's cache and models are what the locks say, and what makes true again what is not.

An output is a link to its copy in DVC's cache, so that a byte that changes in one changes in both,
and DVC, which trusts its cache, puts the changed byte back wherever it is asked for the output. To
heal is to take both away: then `dvc repro` makes it again, and `make pull` fetches it. Of an output
that is a folder, what the lock does not know goes as well: `bag` would read it as rows, and DVC
takes the folder for another. Where DVC has lost the list of its files, nobody knows which of them
is damaged, and the whole folder goes.
"""

import hashlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.fs import localfs
from dvc.repo import Repo
from dvc.stage import PipelineStage

from stages.lib.console import locks
from stages.lib.console.locks import LockError
from stages.lib.core import progress

AT_ONCE = 1 << 22  # bytes read at once
UNKNOWN = ""  # the sum of what a folder is not to have

Inside = Callable[[Path], list[Path]]  # all files in a folder that DVC sees, wherever in it


@dataclass(frozen=True)
class Wanted:
    """A file or folder and the MD5 sum that a lock knows it by; UNKNOWN of a file in a folder whose list in the cache does not have it.

    stage: as DVC calls it; made: whether the stage writes it or only reads it; cached: whether DVC keeps a copy, or Git does.
    """

    path: Path
    md5: str
    stage: str
    made: bool
    cached: bool


def verify(root: Path, heal: bool = False) -> tuple[list[str], bool]:
    """What there is to say, line by line, and whether all is well. heal: takes away what is damaged.

    Raises LockError where a lock cannot be read, or lacks stages that it had when it was committed.
    """
    locks.check(root)
    try:
        repo = Repo(str(root))
        cache = Path(repo.cache.local.path)
        inside = _inside(repo)
        wanted = list({(of.path, of.md5): of for of in _wanted(repo, cache, inside)}.values())
        locked = sum(all(out.hash_info for out in stage.outs) for stage in repo.index.stages)
        waiting = len(repo.index.stages) - locked
    except DvcException as error:
        raise LockError(str(error)) from None
    places = {of: _places(of, cache) for of in wanted}
    sums = _sums({path for paths in places.values() for path in paths}, inside)
    damaged = {of: [path for path in paths if sums[path] != of.md5] for of, paths in places.items()}
    lines = []
    for of, bad in damaged.items():
        for path in bad:
            lines.append(f"{_name(path, root)} is not what the lock says: {_meaning(of, path, cache)}")
            if heal and of.cached:
                _take_away(path, cache)
    absent = sum(not paths for of, paths in places.items() if of.made)
    checked = len(sums)
    said = [f"{checked:,} files held against {locked:,} locked stages: {len(lines):,} damaged"]
    if absent:
        way_out = "`make pull` fetches them, or `dvc repro` makes them"
        said.append(f"{absent:,} outputs are not here: {way_out}")
    if waiting:
        said.append(f"{waiting:,} stages have not run yet: `dvc repro --all-pipelines` runs them")
    if lines:
        said.append(_way_out([of for of, bad in damaged.items() if bad], heal, root))
    return lines + said, not lines


def _inside(repo: Repo) -> Inside:
    """What lists the files of a folder. What .dvcignore names, such as what a stage that was killed left half-written, is none of DVC's."""
    return lambda folder: [path for path in map(Path, repo.dvcignore.find(localfs, str(folder))) if path.is_file()]


def _wanted(repo: Repo, cache: Path, inside: Inside) -> Iterator[Wanted]:
    """Every file that a lock names, of outputs and of what comes from outside: models, and a user's own tables."""
    made = {Path(out.fs_path) for stage in repo.index.stages for out in stage.outs}
    above = {parent for path in made for parent in path.parents}
    for stage in repo.index.stages:
        for kind, entries in ((True, stage.outs), (False, stage.deps)):
            for entry in entries:
                path = Path(entry.fs_path)
                if not entry.hash_info or (not kind and (path in above or not _is_data(path, made, Path(repo.root_dir)))):
                    continue
                for file, md5 in _files(path, entry.hash_info.value, cache, inside):
                    yield Wanted(file, md5, _address(stage), kind, kind and entry.use_cache)


def _address(stage: PipelineStage) -> str:
    """What `dvc repro` in the root takes: of a stage of the root its name, of others <file>:<name>."""
    return stage.name if stage.path_in_repo == "dvc.yaml" else f"{stage.path_in_repo}:{stage.name}"


def _is_data(path: Path, made: set[Path], root: Path) -> bool:
    """Whether what a stage depends on is data that no stage makes: neither an output or part of one, nor code, nor settings."""
    code = path.is_relative_to(root / "stages") or path.name == "params.yaml"
    return not code and path not in made and made.isdisjoint(path.parents)


def _files(path: Path, md5: str, cache: Path, inside: Inside) -> Iterator[tuple[Path, str]]:
    """A file and its sum; of a folder, all files that it had by its list in the cache, and any that it has besides; or else, where there
    is no such list, the folder itself, see `_folder_sum`."""
    listed = cache / md5[:2] / md5[2:]
    if md5.endswith(".dir") and listed.exists() and file_sum(listed) == md5.removesuffix(".dir"):
        yield listed, md5.removesuffix(".dir")
        entries = json.loads(listed.read_text(encoding="utf-8"))
        files = {path / entry["relpath"]: entry["md5"] for entry in entries}
        yield from files.items()
        yield from ((file, UNKNOWN) for file in inside(path) if file not in files)
    else:
        yield path, md5


def _places(of: Wanted, cache: Path) -> list[Path]:
    """Where there are copies of a file: at its place and, if DVC keeps one, in the cache."""
    copy = [cache / of.md5[:2] / of.md5[2:]] if of.cached and of.md5 != UNKNOWN else []
    return [path for path in (of.path, *copy) if path.exists()]


def _take_away(path: Path, cache: Path) -> None:
    """A file, or a whole folder, with damaged copies in the cache that its files are links to: DVC would put them back."""
    if not path.is_dir():
        path.unlink(missing_ok=True)  # outputs that are equal share a copy in the cache
        return
    linked = {(of.st_dev, of.st_ino) for of in (file.stat() for file in path.rglob("*") if file.is_file())}
    for copy in cache.glob("??/*"):
        status = copy.stat()
        is_linked = (status.st_dev, status.st_ino) in linked
        if is_linked and file_sum(copy) != copy.parent.name + copy.name:
            copy.unlink()
    shutil.rmtree(path)


def _sums(paths: Collection[Path], inside: Inside) -> dict[Path, str]:
    """The MD5 sum of every file or folder. Links to one file are read once."""
    links: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in sorted(paths):
        status = path.stat()
        links[status.st_dev, status.st_ino].append(path)
    sums: dict[Path, str] = {}
    folders = {path: inside(path) for path in paths if path.is_dir()}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        found = pool.map(
            lambda path: _folder_sum(path, folders[path]) if path in folders else file_sum(path),
            [paths[0] for paths in links.values()],
        )
        for same, md5 in progress.bar(zip(links.values(), found, strict=True), total=len(links), desc="verify", unit="file"):
            sums |= dict.fromkeys(same, md5)
    return sums


def file_sum(path: Path) -> str:
    """DVC's sum of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def _folder_sum(folder: Path, files: list[Path]) -> str:
    """DVC's sum of a folder with these files: that of their sorted list."""
    sums = {file.relative_to(folder).as_posix(): file_sum(file) for file in files}
    listed = [{"md5": sums[name], "relpath": name} for name in sorted(sums)]
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _meaning(of: Wanted, path: Path, cache: Path) -> str:
    if of.md5 == UNKNOWN:
        return f"{of.stage} {'made' if of.made else 'read'} no such file"
    if not of.made:
        return f"{of.stage} read it with other bytes"
    return f"a copy in the cache of what {of.stage} made" if path.is_relative_to(cache) else f"{of.stage} made it"


def _way_out(damaged: list[Wanted], heal: bool, root: Path) -> str:
    stages = " ".join(sorted({of.stage for of in damaged if of.cached}))
    in_git = " ".join(sorted({_name(of.path, root) for of in damaged if of.made and not of.cached}))
    foreign = ", ".join(sorted({_name(of.path, root) for of in damaged if not of.made}))
    said = []
    if stages:
        taken = "The damaged copies are taken away:" if heal else "`bag verify --heal` takes the damaged copies away; then"
        said.append(f"{taken} `dvc repro {stages}` makes them again, or `make pull` fetches them.")
    if in_git:
        said.append(f"`git checkout -- {in_git}` puts back what Git keeps.")
    if foreign:
        said.append(f"No stage makes {foreign}: bring the true files back, or `dvc repro` runs with those that are there.")
    return " ".join(said)
