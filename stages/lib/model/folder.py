"""A model's folder: there, whole, and as it was when its digests were taken.

SHA256SUMS, where there is one, lists the folder's files as `sha256sum * > SHA256SUMS` does. Our own models have it; beside weights
from elsewhere, that command makes it. Files are held against it whenever a model or a tokenizer is loaded.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stages.lib.core.files import replacing

SUMS = "SHA256SUMS"
LARGE = 1 << 30  # bytes, which take a second to read; every stage, and every worker of it, would
ESCAPED = defaultdict(str, {"n": "\n", "r": "\r", "\\": "\\"})  # letters behind a backslash, in names of a line that starts with one
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
        for digest, name in _listed((path / SUMS).read_text(encoding="utf-8", errors="replace")):
            if Path(name) == Path(SUMS):  # where that command is given again, `*` names what it is just writing
                continue
            if not (path / name).is_file() or sha256([path / name]) != digest:
                raise ModelError(f"{path / name} is not the file that {path / SUMS} lists: it is damaged, missing or was exchanged")
    return path


def _listed(sums: str) -> Iterator[tuple[str, str]]:
    """The digest and name of each file in a list, in the forms that `sha256sum --check` takes: as it writes them itself, with `--binary`,
    with `--tag`, or with digits in capitals. Raises ModelError on any other line."""
    for number, text in enumerate(sums.split("\n"), start=1):
        line = text.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        parts = re.fullmatch(r"\\?SHA256 ?\((?P<name>.+)\) ?= ?(?P<digest>[0-9a-fA-F]{64})", line)
        parts = parts or re.fullmatch(r"\\?(?P<digest>[0-9a-fA-F]{64}) [ *]?(?P<name>.+)", line)
        if not parts:
            raise ModelError(f"line {number} of {SUMS} is not a sum and a name as `sha256sum * > {SUMS}` writes them: {line[:80]!r}")
        name = re.sub(r"\\(.)", lambda escape: ESCAPED[escape[1]], parts["name"]) if line.startswith("\\") else parts["name"]
        yield parts["digest"].lower(), name


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
    with suppress(OSError), replacing(kept, shared=True) as partial:  # a project may be there to be read only
        partial.write_text(digest, encoding="utf-8")
    return digest


def _read(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
