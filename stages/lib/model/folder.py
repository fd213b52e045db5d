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
from math import inf
from pathlib import Path

from stages.lib.core.files import replacing

SUMS = "SHA256SUMS"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_SHARDS = 10_000
SUMS_BYTES = 4 << 20
LFS = b"version https://git-lfs"
LARGE = 1 << 30  # bytes, which take a second to read; every stage, and every worker of it, would
ESCAPED = defaultdict(str, {"n": "\n", "r": "\r", "\\": "\\"})  # letters behind a backslash, in names of a line that starts with one
KEPT = Path(".cache/sha256")


class ModelError(SystemExit):
    """A model folder that cannot be used; uncaught, it ends the program with its message and status 1."""


def existing(folder: str | Path, largest: float = inf) -> Path:
    """The folder, as it was when its digests were taken. Raises ModelError where it is missing, or a file is missing or another.

    largest: files of more bytes are not compared with their digests, which would take long.
    """
    path = Path(folder)
    if not path.is_dir():
        way_out = "train one with `cd stages/subjects && dvc repro train`, or correct the subject in params.yaml"
        raise ModelError(f"no model folder at {folder}; {way_out}")
    if (path / SUMS).is_file():
        if (size := (path / SUMS).stat().st_size) > SUMS_BYTES:
            raise ModelError(
                f"{path / SUMS} has {size:,} bytes; at most {SUMS_BYTES:,} are supported; take the sums again: sha256sum * > {SUMS}"
            )
        listed = set()
        for digest, name in _listed((path / SUMS).read_text(encoding="utf-8", errors="replace")):
            listed.add(str(Path(name)))
            if Path(name) == Path(SUMS):  # where that command is given again, `*` names what it is just writing
                continue
            if not (path / name).is_file() or ((path / name).stat().st_size <= largest and sha256([path / name]) != digest):
                raise ModelError(f"{path / name} is not the file that {path / SUMS} lists: it is damaged, missing or was exchanged")
        loaded = [*weights(path), path / "config.json", path / "tokenizer.json"]
        if unlisted := [file for file in loaded if file.is_file() and file.name not in listed]:
            raise ModelError(f"{path / SUMS} does not list {unlisted[0].name}, which is loaded; take the sums again: sha256sum * > {SUMS}")
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


def present(file: Path) -> bool:
    """Whether a file is there. Raises ModelError where its name is a broken link, a pointer of Git LFS, or no file."""
    if not file.exists():
        if file.is_symlink():
            raise ModelError(f"{file} is a link to {file.readlink()}, which does not exist; download the model again, or correct the link")
        return False
    if not file.is_file():
        raise ModelError(f"{file} is not a file")
    with file.open("rb") as stream:
        start = stream.read(len(LFS))
    if start == LFS:
        raise ModelError(f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` where it was cloned")
    if not start:
        raise ModelError(f"{file} is empty; download it again")
    return True


def weights(folder: Path) -> list[Path]:
    """The files that a model's weights are read from, first the index where there is one; none where the folder has no weights.

    Raises ModelError where the index names something that is no file of the folder, or a whole model lies beside it.
    """
    single = [folder / WEIGHTS] if present(folder / WEIGHTS) else []
    shards = [folder / name for name in sorted(set(weight_map(folder).values()))]
    if not shards:
        return single
    if missing := next((shard for shard in shards if not present(shard)), None):
        raise ModelError(f"{missing} is missing, which {INDEX} names; download it again")
    if single and shards != single:
        raise ModelError(f"{folder} holds two models: {WEIGHTS}, and what {INDEX} names; remove one of them")
    return [folder / INDEX, *shards]


def weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor, as a sharded model's index has it; empty where there is no index.

    Raises ModelError where a file is not a plain name: what lies outside the folder is covered by no digest.
    """
    file = folder / INDEX
    if not present(file):
        return {}
    try:
        shards = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        names = set(shards.values())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is no index of weights: {sentence(error)}") from None
    if not names:
        raise ModelError(f"{file} is no index of weights: its weight_map is empty")
    if len(names) > MOST_SHARDS:
        raise ModelError(f"{file} names {len(names):,} files; at most {MOST_SHARDS:,} are supported")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ModelError(f"{file} names {name!r}; only safetensors files of the folder itself, without a path, are allowed")
    return shards


def write_sums(folder: Path) -> None:
    """Takes the digests of all files of a folder, as `*` names them: not of hidden ones."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS and not file.name.startswith("."))
    (folder / SUMS).write_text("".join(f"{sha256([file])}  {file.name}\n" for file in files), encoding="utf-8")


def sentence(error: Exception) -> str:
    """The first line of an exception's message."""
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
