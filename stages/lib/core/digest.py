"""What the results of a stage depend on, as one number."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType


def digest(of: Iterable[Path | ModuleType], *facts: object) -> str:
    """SHA-256 over the contents of files, in order of their names, and over whatever else matters.

    of: files; folders, for all files in them; modules, for their code, that of a package for all modules in it.
    """
    whole = hashlib.sha256(repr(facts).encode())
    for file in sorted({file for one in of for file in _files(one)}):
        with file.open("rb") as stream:
            whole.update(
                str(file).encode() + b"\0" + hashlib.file_digest(stream, "sha256").digest()
            )
    return whole.hexdigest()


def _files(of: Path | ModuleType) -> Iterator[Path]:
    path = of if isinstance(of, Path) else Path(str(of.__file__))
    if path.name == "__init__.py" and isinstance(of, ModuleType):
        path = path.parent
    yield from (
        (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        if path.is_dir()
        else [path]
    )
