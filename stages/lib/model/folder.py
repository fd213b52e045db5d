"""Check that a model's folder exists, is whole, and still has the files whose digests were taken.

SHA256SUMS, if present, lists the folder's files as `sha256sum * > SHA256SUMS` does. Our own models
have it; for weights from elsewhere, that command makes it. Whenever a model or a tokenizer is
loaded, its files are compared with the list.
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
LARGE = 1 << 26  # bytes; a digest takes a second per GiB, in every stage and every worker of it
# letter after a backslash -> its meaning, in the name on a line that starts with a backslash
ESCAPED = defaultdict(str, {"n": "\n", "r": "\r", "\\": "\\"})
KEPT = Path(".cache/sha256")


class ModelError(SystemExit):
    """A model folder that cannot be used; uncaught, it ends the program with its message and status 1."""


def existing(folder: str | Path, largest: float = inf) -> Path:
    """Return the folder, as it was when its digests were taken.

    Raises ModelError where it is missing, or one of its files is missing or another.
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
            # `sha256sum * > SHA256SUMS`, run again, lists the file that it is just writing
            if Path(name) == Path(SUMS):
                continue
            file = path / name
            read = file.is_file() and file.stat().st_size <= largest
            if not file.is_file() or (read and sha256([file]) != digest):
                problem = f"{file} is not the file that {path / SUMS} lists"
                raise ModelError(f"{problem}: it is damaged, missing or was exchanged")
        loaded = [*weights(path), path / "config.json", path / "tokenizer.json"]
        if unlisted := [file for file in loaded if file.is_file() and file.name not in listed]:
            problem = f"{path / SUMS} does not list {unlisted[0].name}, which is loaded"
            raise ModelError(f"{problem}; take the sums again: sha256sum * > {SUMS}")
    return path


def _listed(sums: str) -> Iterator[tuple[str, str]]:
    """Yield the digest and name of each file in a list, in every form that `sha256sum` can check.

    It writes them plainly, with `--binary` or with `--tag`; digits may be in capitals. Raises
    ModelError on any other line.
    """
    for number, text in enumerate(sums.split("\n"), start=1):
        line = text.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        parts = re.fullmatch(r"\\?SHA256 ?\((?P<name>.+)\) ?= ?(?P<digest>[0-9a-fA-F]{64})", line)
        parts = parts or re.fullmatch(r"\\?(?P<digest>[0-9a-fA-F]{64}) [ *]?(?P<name>.+)", line)
        if not parts:
            expected = f"a sum and a name as `sha256sum * > {SUMS}` writes them"
            raise ModelError(f"line {number} of {SUMS} is not {expected}: {line[:80]!r}")
        name = parts["name"]
        if line.startswith("\\"):
            name = re.sub(r"\\(.)", lambda escape: ESCAPED[escape[1]], name)
        yield parts["digest"].lower(), name


def present(file: Path) -> bool:
    """Return whether a file exists.

    Raises ModelError if it is a broken link, a pointer of Git LFS, empty, or not a file.
    """
    if not file.exists():
        if file.is_symlink():
            problem = f"{file} is a link to {file.readlink()}, which does not exist"
            raise ModelError(f"{problem}; download the model again, or correct the link")
        return False
    if not file.is_file():
        raise ModelError(f"{file} is not a file")
    with file.open("rb") as stream:
        start = stream.read(len(LFS))
    if start == LFS:
        way_out = "run `git lfs pull` where it was cloned"
        raise ModelError(f"{file} is a pointer of Git LFS, not the file itself; {way_out}")
    if not start:
        raise ModelError(f"{file} is empty; download it again")
    return True


def weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights, the index first; none if the folder has no weights.

    Raises ModelError where the index names something that is no file of the folder, or a whole
    model lies beside it.
    """
    single = [folder / WEIGHTS] if present(folder / WEIGHTS) else []
    shards = [folder / name for name in sorted(set(weight_map(folder).values()))]
    if not shards:
        return single
    if missing := next((shard for shard in shards if not present(shard)), None):
        raise ModelError(f"{missing} is missing, which {INDEX} names; download it again")
    if single and shards != single:
        problem = f"{folder} holds two models: {WEIGHTS}, and what {INDEX} names"
        raise ModelError(f"{problem}; remove one of them")
    return [folder / INDEX, *shards]


def weight_map(folder: Path) -> dict[str, str]:
    """Return the file of each tensor in a sharded model's index; empty if there is no index.

    Raises ModelError where a file is not a plain name: what lies outside the folder is covered by
    no digest.
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
        most = f"at most {MOST_SHARDS:,} are supported"
        raise ModelError(f"{file} names {len(names):,} files; {most}")
    for name in names:
        is_plain = isinstance(name, str) and Path(name).name == name and "\\" not in name
        if not is_plain or not name.endswith(".safetensors"):
            allowed = "only safetensors files of the folder itself, without a path, are allowed"
            raise ModelError(f"{file} names {name!r}; {allowed}")
    return shards


def write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder, except hidden files, as `*` does."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS and not file.name.startswith("."))
    lines = [f"{sha256([file])}  {file.name}\n" for file in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def sentence(error: Exception) -> str:
    """The first line of an exception's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def sha256(files: list[Path]) -> str:
    """One digest of the bytes of files, in this order.

    The digest of large files is kept, and taken again once the path, size, times of modification
    and of change, or inode of a file differ. Whoever writes a file sets its time of change to now,
    and cannot set it back, as they can that of modification.
    """
    status = [file.stat() for file in files]
    if sum(one.st_size for one in status) < LARGE:
        return _read(files)
    facts = [[str(f.resolve()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for f, s in zip(files, status, strict=True)]
    kept = KEPT / hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    if kept.is_file():
        digest = kept.read_text(encoding="utf-8")
        if len(digest) == hashlib.sha256().digest_size * 2:
            return digest
    digest = _read(files)
    # the project may be read-only
    with suppress(OSError), replacing(kept, shared=True) as partial:
        partial.write_text(digest, encoding="utf-8")
    return digest


def _read(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
