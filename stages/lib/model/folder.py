"""A model's folder: there, whole, and as it was when its digests were taken.

SHA256SUMS, where there is one, lists the folder's files as `sha256sum * > SHA256SUMS` does. Our own models have it; beside weights
from elsewhere, that command makes it. Files are held against it whenever a model or a tokenizer is loaded.
"""

import hashlib
import json
from pathlib import Path

from stages.lib.core.files import replacing

SUMS = "SHA256SUMS"
LARGE = 1 << 30  # bytes, which take a second to read; every stage, and every worker of it, would
KEPT = Path(".cache/sha256")


class ModelError(SystemExit):
    """A model folder that cannot be used; uncaught, it ends the program with its message and status 1."""


def existing(folder: str | Path) -> Path:
    """The folder, as it was when its digests were taken. Raises ModelError where it is missing, or a file is missing or another."""
    path = Path(folder)
    if not path.is_dir():
        way_out = "train one with `cd stages/subjects && dvc repro train`, or correct the subject in params.yaml"
        raise ModelError(f"no model folder at {folder}; {way_out}")
    if (path / SUMS).is_file():
        for line in (path / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
            digest, _, name = line.partition("  ")
            if name == SUMS:  # where that command is given again, `*` names what it is just writing
                continue
            if not (path / name).is_file() or sha256([path / name]) != digest:
                raise ModelError(f"{path / name} is not the file that {path / SUMS} lists: it is damaged, missing or was exchanged")
    return path


def write_sums(folder: Path) -> None:
    """Takes the digests of all files of a folder, as `*` names them: not of hidden ones."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS and not file.name.startswith("."))
    (folder / SUMS).write_text("".join(f"{sha256([file])}  {file.name}\n" for file in files), encoding="utf-8")


def sentence(error: Exception) -> str:
    """The first line of what an exception of a library says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def sha256(files: list[Path]) -> str:
    """One digest of the bytes of files, in this order. Of large ones it is kept, and taken again once a file's status has changed."""
    status = [file.stat() for file in files]
    if sum(one.st_size for one in status) < LARGE:
        return _read(files)
    facts = [[str(f.resolve()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for f, s in zip(files, status, strict=True)]
    kept = KEPT / hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    if kept.is_file() and len(digest := kept.read_text(encoding="utf-8")) == hashlib.sha256().digest_size * 2:
        return digest
    digest = _read(files)
    with replacing(kept, shared=True) as partial:
        partial.write_text(digest, encoding="utf-8")
    return digest


def _read(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
