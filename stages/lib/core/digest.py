"""Compute the key of a stage's parts: a sum over everything that its results depend on."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def digest(sources: Iterable[Path | ModuleType], *facts: object) -> str:
    """Return the SHA-256 sum of the contents of files, ordered by name, and of any other facts.

    sources: files; folders, for all files in them; modules, for their code; packages, for the code
    of all their modules.
    """
    whole = hashlib.sha256(repr(facts).encode())
    files: set[Path] = set()
    for source in sources:
        files.update(_files(source))
    for file in sorted(files):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        whole.update(str(file).encode() + b"\0" + content)
    return whole.hexdigest()


def _files(source: Path | ModuleType) -> Iterable[Path]:
    path = source if isinstance(source, Path) else Path(str(source.__file__))
    if path.name == "__init__.py" and isinstance(source, ModuleType):
        path = path.parent
    if not path.is_dir():
        return [path]
    files = filter(Path.is_file, path.rglob("*"))
    return (file for file in files if "__pycache__" not in file.parts)
