"""`bag verify`: compare outputs, DVC's cache and models with the locks; --heal removes damage.

An output is a link to its copy in DVC's cache, so a byte that changes in one changes in both. DVC
trusts its cache, and restores the changed byte with the output. So healing removes both copies;
`dvc repro` then makes the output again, or `make pull` fetches it.

If the output is a folder, healing also removes files that its lock does not list: `bag` would read
them as rows, and DVC would see a changed folder. If DVC has lost the list of the folder's files,
nothing tells which file is damaged, and the whole folder is removed.
"""

import argparse
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.fs import localfs
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage

from stages.lib.console import locks
from stages.lib.console.locks import LockError
from stages.lib.core import environment, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    meaning = "remove damaged copies, which `dvc repro` or `make pull` then replaces"
    parser.add_argument("--heal", action="store_true", help=meaning)


def run(options: argparse.Namespace) -> None:
    """Print what differs. Exit with status 1 if something is damaged."""
    try:
        lines, is_whole = verify(Path.cwd(), options.heal)
    except LockError as error:
        raise SystemExit(f"bag: {error}") from None
    print("\n".join(lines))
    if not is_whole:
        raise SystemExit(1)


@dataclass(frozen=True)
class Expected:
    """A file or folder that a lock knows.

    md5: its sum in the lock, None if it is in a folder whose list does not name it; stage: as
    `dvc repro` names it; is_output: whether the stage writes it, else the stage reads it;
    is_cached: whether DVC keeps a copy, else Git may.
    """

    path: Path
    md5: str | None
    stage: str
    is_output: bool
    is_cached: bool

    def copies(self, cache: Path) -> list[Path]:
        """Return where the file exists: at its place, in DVC's cache, or both."""
        paths = [self.path]
        if self.is_cached and self.md5:
            paths.append(object_of(cache, self.md5))
        return list(filter(Path.exists, paths))

    def damage(self, path: Path, cache: Path) -> str:
        """Describe a copy whose sum is wrong."""
        if not self.md5:
            return f"{self.stage} has no such file"
        if not self.is_output:
            return f"{self.stage} read it with other bytes"
        if path.is_relative_to(cache):
            return f"a copy in the cache of what {self.stage} wrote"
        return f"{self.stage} wrote it"


def verify(root: Path, heal: bool = False) -> tuple[list[str], bool]:
    """Return the lines to print, and whether nothing is damaged. heal: remove damaged copies.

    Raises LockError if a lock cannot be read, or lacks stages of its committed version.
    """
    locks.check(root)
    try:
        repo = Repo(str(root))
        cache = _cache(repo)
        expected = {(file.path, file.md5): file for file in _expected(repo)}.values()
        stages = list(repo.index.stages)
        locked = [stage for stage in stages if all(out.hash_info for out in stage.outs)]
    except DvcException as error:
        raise LockError(str(error)) from None
    copies = {file: file.copies(cache) for file in expected}
    sums = _sums(repo, set().union(*copies.values()))
    lines: list[str] = []
    damaged: list[Expected] = []
    for file, paths in copies.items():
        for path in paths:
            if sums[path] != file.md5:
                problem = file.damage(path, cache)
                lines.append(f"{_name(path, root)} differs from its lock: {problem}")
                damaged.append(file)
                if heal and file.is_cached:
                    _remove(path, cache)
    absent = [file for file, paths in copies.items() if file.is_output and not paths]
    summary = f"{len(sums):,} files compared with {len(locked):,} locked stages"
    lines.append(f"{summary}: {len(damaged):,} damaged")
    lines += _missing(len(absent), len(stages) - len(locked))
    if damaged:
        lines.append(_way_out(damaged, heal, root))
    return lines, not damaged


def _missing(absent: int, waiting: int) -> Iterator[str]:
    """Yield lines about outputs that are missing here, and about stages that have not run yet."""
    if absent:
        way_out = "`make pull` fetches them, or `dvc repro` makes them"
        yield f"{absent:,} outputs are missing here: {way_out}"
    if waiting:
        yield f"{waiting:,} stages have not run yet: `dvc repro --all-pipelines` runs them"


def _cache(repo: Repo) -> Path:
    return Path(repo.cache.local.path)


def object_of(cache: Path, md5: str) -> Path:
    """Return where a cache or a remote folder of DVC keeps the bytes with an MD5 sum."""
    return cache / md5[:2] / md5[2:]


def _expected(repo: Repo) -> Iterator[Expected]:
    """Yield every file that a lock knows: outputs, and what no stage writes, such as models."""
    outputs = {Path(out.fs_path) for out in repo.index.outs}
    folders = set().union(*(path.parents for path in outputs))
    root = Path(repo.root_dir)
    for stage in repo.index.stages:
        for entry in stage.outs:
            yield from _files(repo, stage, entry, is_output=True)
        for entry in stage.deps:
            path = Path(entry.fs_path)
            is_code = path.is_relative_to(root / "stages") or path.name == "params.yaml"
            is_written = path in outputs or path in folders or not outputs.isdisjoint(path.parents)
            if not is_code and not is_written:
                yield from _files(repo, stage, entry, is_output=False)


def _files(
    repo: Repo,
    stage: PipelineStage,
    entry: Output,
    is_output: bool,
) -> Iterator[Expected]:
    """Yield an output or dependency, or all files of a folder: those listed, and any others.

    Without a list in the cache, yield the folder itself (see `_folder_sum`).
    """
    if not entry.hash_info:
        return
    address = f"{stage.path_in_repo}:{stage.name}"
    expected = partial(
        Expected,
        stage=stage.name if stage.path_in_repo == "dvc.yaml" else address,
        is_output=is_output,
        is_cached=is_output and entry.use_cache,
    )
    path, md5 = Path(entry.fs_path), entry.hash_info.value
    list_file, list_md5 = object_of(_cache(repo), md5), md5.removesuffix(".dir")
    if list_md5 == md5 or not list_file.exists() or file_sum(list_file) != list_md5:
        yield expected(path, md5)
        return
    yield expected(list_file, list_md5)
    listed = set()
    for item in json.loads(list_file.read_text(encoding="utf-8")):
        file = path / item["relpath"]
        listed.add(file)
        yield expected(file, item["md5"])
    for file in _files_in(repo, path):
        if file not in listed:
            yield expected(file, None)


def _files_in(repo: Repo, folder: Path) -> list[Path]:
    """Return all files in a folder but those in .dvcignore, such as a killed stage's leftovers."""
    return list(filter(Path.is_file, map(Path, repo.dvcignore.find(localfs, str(folder)))))


def _remove(path: Path, cache: Path) -> None:
    """Remove a file, or a folder and the damaged copies in the cache that its files link to.

    DVC would restore the folder from these copies.
    """
    if not path.is_dir():
        path.unlink(missing_ok=True)  # equal outputs share a copy in the cache
        return
    linked = set(map(_inode, filter(Path.is_file, path.rglob("*"))))
    for copy in cache.glob("??/*"):
        if _inode(copy) in linked and file_sum(copy) != copy.parent.name + copy.name:
            copy.unlink()
    shutil.rmtree(path)


def _inode(path: Path) -> tuple[int, int]:
    """Return what two links to one file have in common."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _sums(repo: Repo, paths: Collection[Path]) -> dict[Path, str]:
    """Return the MD5 sum of every file or folder. Links to one file are read once."""
    links: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in sorted(paths):
        links[_inode(path)].append(path)
    folders = {path: _files_in(repo, path) for path in filter(Path.is_dir, paths)}

    def compute(links: list[Path]) -> str:
        path = links[0]
        return _folder_sum(path, folders[path]) if path in folders else file_sum(path)

    sums: dict[Path, str] = {}
    with ThreadPoolExecutor(environment.cores()) as pool:
        results = zip(links.values(), pool.map(compute, links.values()), strict=True)
        for same, md5 in progress.bar(results, total=len(links), desc="verify", unit="file"):
            sums |= dict.fromkeys(same, md5)
    return sums


def file_sum(path: Path) -> str:
    """Return DVC's sum of a file, its MD5 sum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _folder_sum(folder: Path, files: list[Path]) -> str:
    """Return DVC's sum of a folder with these files: the MD5 sum of their sorted list."""
    sums = {file.relative_to(folder).as_posix(): file_sum(file) for file in files}
    listed = [{"md5": md5, "relpath": name} for name, md5 in sorted(sums.items())]
    text = json.dumps(listed, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _way_out(damaged: list[Expected], heal: bool, root: Path) -> str:
    """Return what repairs the damage."""

    def names(files: Iterable[Expected]) -> list[str]:
        return sorted({_name(file.path, root) for file in files})

    stages = sorted({file.stage for file in damaged if file.is_cached})
    in_git = names(file for file in damaged if file.is_output and not file.is_cached)
    foreign = names(file for file in damaged if not file.is_output)
    sentences = []
    if stages:
        start = "`bag verify --heal` removes the damaged copies; then"
        if heal:
            start = "The damaged copies are removed:"
        repro = f"`dvc repro {' '.join(stages)}` makes them again"
        sentences.append(f"{start} {repro}, or `make pull` fetches them.")
    if in_git:
        sentences.append(f"`git checkout -- {' '.join(in_git)}` restores what Git keeps.")
    if foreign:
        way_out = "restore the original files, or `dvc repro` runs with the present ones"
        sentences.append(f"No stage writes {', '.join(foreign)}: {way_out}.")
    return " ".join(sentences)
