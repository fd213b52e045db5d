"""Check that a model's folder exists, is complete, and has unchanged files.

SHA256SUMS, if present, lists the digests of the folder's files as `sha256sum * > SHA256SUMS` does.
Our own models have the list; for weights from elsewhere, that command makes it. Whenever a model or
a tokenizer is loaded, its files are compared with the list.
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
LARGE = 1 << 26  # bytes; a digest takes a second per GiB, in every stage and every worker
# letter after a backslash -> its meaning, in the name on a line that starts with a backslash
ESCAPED = defaultdict(str, {"n": "\n", "r": "\r", "\\": "\\"})
DIGESTS = Path(".cache/sha256")


TAKE_SUMS = f"make the list again: sha256sum * > {SUMS}"


class ModelError(SystemExit):
    """A model folder that cannot be used. Uncaught, it ends the program with its message."""


def existing(folder: str | Path, largest: float = inf) -> Path:
    """Return the folder, after checking that its files are those that SHA256SUMS lists.

    largest: files of more bytes are not compared with their digests, which would take long.
    Raises ModelError if the folder is missing, or one of its files is missing or changed.
    """
    path = Path(folder)
    if not path.is_dir():
        train = "train one with `cd stages/subjects && dvc repro train`"
        way_out = f"{train}, or correct the subject in params.yaml"
        raise ModelError(f"no model folder at {folder}; {way_out}")
    if (path / SUMS).is_file():
        _check_sums(path, largest)
    return path


def _check_sums(folder: Path, largest: float) -> None:
    sums = folder / SUMS
    size = sums.stat().st_size
    if size > SUMS_BYTES:
        problem = f"{sums} has {size:,} bytes; at most {SUMS_BYTES:,} are supported"
        raise ModelError(f"{problem}; {TAKE_SUMS}")
    listed = set()
    for digest, name in _listed(sums.read_text(encoding="utf-8", errors="replace")):
        listed.add(str(Path(name)))
        # `sha256sum * > SHA256SUMS`, run again, lists the file that it is just writing
        if Path(name) == Path(SUMS):
            continue
        file = folder / name
        is_read = file.is_file() and file.stat().st_size <= largest
        if not file.is_file() or (is_read and sha256([file]) != digest):
            problem = f"{file} is not the file that {sums} lists"
            raise ModelError(f"{problem}: it is damaged, missing or was exchanged")
    for file in (*weights(folder), folder / "config.json", folder / "tokenizer.json"):
        if file.is_file() and file.name not in listed:
            raise ModelError(f"{sums} does not list {file.name}, which is loaded; {TAKE_SUMS}")


def _listed(sums: str) -> Iterator[tuple[str, str]]:
    """Yield the digest and name of each file in a list of any form that `sha256sum` checks.

    `sha256sum` writes plain lines, or lines as with `--binary` or `--tag`. Digits may be in
    capitals. Raises ModelError for any other line.
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

    Raises ModelError if it is a broken link, a pointer of Git LFS, empty, or not a regular file.
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
        way_out = "run `git lfs pull` in the clone that it is from"
        raise ModelError(f"{file} is a pointer of Git LFS, not the file itself; {way_out}")
    if not start:
        raise ModelError(f"{file} is empty; download it again")
    return True


def weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights, the index first; none if the folder has no weights.

    Raises ModelError if a file that the index names is missing, or if the folder also has a whole
    model in a single file.
    """
    single = [folder / WEIGHTS] if present(folder / WEIGHTS) else []
    shards = [folder / name for name in sorted(set(weight_map(folder).values()))]
    if not shards:
        return single
    for shard in shards:
        if not present(shard):
            raise ModelError(f"{shard} is missing, which {INDEX} names; download it again")
    if single and shards != single:
        problem = f"{folder} holds two models: {WEIGHTS}, and what {INDEX} names"
        raise ModelError(f"{problem}; remove one of them")
    return [folder / INDEX, *shards]


def weight_map(folder: Path) -> dict[str, str]:
    """Return the file of each tensor in a sharded model's index; empty if there is no index.

    Raises ModelError if a file is not a plain name, because files outside the folder have no
    digest.
    """
    file = folder / INDEX
    if not present(file):
        return {}
    try:
        shards = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        names = set(shards.values())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is not an index of weights: {sentence(error)}") from None
    if not names:
        raise ModelError(f"{file} is not an index of weights: its weight_map is empty")
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
    lines = []
    for file in sorted(folder.iterdir()):
        if file.name != SUMS and not file.name.startswith("."):
            lines.append(f"{sha256([file])}  {file.name}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def sentence(error: Exception) -> str:
    """Return the first line of an exception's message, or the exception's name if it is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def sha256(files: list[Path]) -> str:
    """Return one digest of the bytes of files, in this order.

    The digest of large files is kept in a cache. It is computed again if the path, size, inode,
    or time of modification or change of a file differs. Every write sets the time of change to the
    current time, and unlike the time of modification it cannot be set back.
    """
    facts = []
    size = 0
    for file in files:
        status = file.stat()
        size += status.st_size
        times = [status.st_mtime_ns, status.st_ctime_ns]
        facts.append([str(file.resolve()), status.st_size, *times, status.st_ino])
    if size < LARGE:
        return _digest(files)
    kept = DIGESTS / hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    if kept.is_file():
        digest = kept.read_text(encoding="utf-8")
        if len(digest) == hashlib.sha256().digest_size * 2:
            return digest
    digest = _digest(files)
    # the project may be read-only
    with suppress(OSError), replacing(kept, shared=True) as partial:
        partial.write_text(digest, encoding="utf-8")
    return digest


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
