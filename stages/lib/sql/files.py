"""Find the files of each table, and open them together.

Parquet files become a dataset of pyarrow, HDF5 files the parts of a lazy table.
"""

from collections.abc import Iterable
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from stages.lib.core import hdf5_store, shards
from stages.lib.core.files import PARTS, way_out
from stages.lib.core.tables import damaged
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.sql.lazy.where import StorePart

TABLES = (".parquet", ".h5")
MEASURES = {"activations": "activation", "value_logits": "logit"}  # lazy table -> its measure
CONSTANTS = ("subject", "operator")  # attributes of a store that become columns


def subject_files(
    subject: str | None,
    tables: list[str],
    data: Path = Path("data"),
) -> dict[str, list[Path]]:
    """Return the files of these tables that concern a subject: its own, and those of no subject.

    If such a table is a folder with a file of this subject, as data/claims/claims/<subject>.parquet
    is, it is that file alone. A stage's results for one subject must not depend on which other
    subjects have results.
    """
    folders = [subject, *CHAPTERS] if subject else CHAPTERS
    paths: list[Path] = []
    for folder in folders:
        paths += (data / folder).rglob("*")
    files: dict[str, list[Path]] = {}
    for name, every in files_of(paths, data).items():
        if name in tables:
            own = [path for path in every if path.stem == subject and path.parents[2] == data]
            files[name] = own or every
    return files


def files_of(paths: Iterable[Path], data: Path = Path("data")) -> dict[str, list[Path]]:
    """Return the files of each table among paths below `data`; a folder counts with its content.

    A table is data/<subject>/<chapter>/<table>.parquet, or data/<chapter>/<table>.parquet if it
    is about no subject or about several. It may be a folder of files, such as
    activations/<operator>.h5, or of shards. Unfinished work of a stage belongs to no table: folders
    of parts, and shards that no manifest lists yet.
    """
    names: dict[PurePath, Path] = {}
    for path in paths:
        for file in [path] if path.suffix in TABLES else path.rglob("*"):
            if file.suffix in TABLES:
                names[PurePath(file.as_posix())] = file
    files: dict[str, list[Path]] = {}
    for name, file in sorted(names.items()):
        table = table_of(name.relative_to(data.as_posix()))
        if table:
            files.setdefault(table, []).append(file)
    return files


def table_of(path: PurePath) -> str | None:
    """Return the table that a file below data/ belongs to, None if it belongs to none."""
    if any(folder.suffix == PARTS for folder in path.parents):
        return None
    # the chapter is the first folder, or the second after the subject's
    for number, chapter in enumerate(path.parts[:2], start=1):
        if chapter in CHAPTERS and len(path.parts) > number:
            name = Path(path.parts[number]).stem
            return name if _is_part(path, name, len(path.parts) - number) else None
    return None


def _is_part(path: PurePath, table: str, depth: int) -> bool:
    """Return whether a file is part of a table. depth: names from the table's own to the file's."""
    if table not in MEASURES:
        return path.suffix == ".parquet"
    # deeper .h5 files are shards, which count if the manifest lists them
    return path.name == shards.MANIFEST or (path.suffix == ".h5" and depth <= 2)


def parquet(paths: list[Path]) -> list[Path]:
    """Return the Parquet files among paths."""
    return [path for path in paths if path.suffix == ".parquet"]


def dataset(paths: list[Path]) -> ds.Dataset:
    """Open the files of one table; their columns are matched by name.

    Raises TableError on a file that is not a table.
    """
    storage, names = None, [path.absolute().as_posix() for path in paths]
    if not isinstance(paths[0], Path):
        storage, names = FileSystem.from_uri(str(paths[0]))[0], [path.path for path in paths]
    schemas = []
    for path, name in zip(paths, names, strict=True):
        try:
            schemas.append(pq.read_schema(name, filesystem=storage))
        except (OSError, pa.ArrowException) as error:
            # errors of object storage, and those that the system numbers, such as a refused
            # permission, do not mean damage
            if not isinstance(path, Path) or getattr(error, "errno", None):
                raise
            raise damaged(path, str(error).strip()) from None
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return ds.dataset(names, schema=schema, format="parquet", filesystem=storage)


def parts(paths: list[Path]) -> list[StorePart]:
    """Open the stores in these files, and those that manifests among the files list.

    Raises StoreError if two stores have different axes, columns or attributes.
    """
    folders = {path.parent for path in paths if path.name == shards.MANIFEST}
    stores: list[hdf5_store.LayerStore] = []
    for folder in sorted(folders):
        stores += shards.stores(folder)
    for path in paths:
        if path.suffix == ".h5" and folders.isdisjoint(path.parents):
            stores.append(hdf5_store.LayerStore(path))
    opened = list(map(_part, stores))
    expected = _columns(opened[0])
    for part in opened:
        if _columns(part) != expected:
            path = part.store.path
            first = f"{stores[0].path} has {', '.join(expected)}"
            problem = f"{path} has {', '.join(_columns(part))}; {first}"
            raise hdf5_store.StoreError(f"{problem}. They are not one table; {way_out(path)}")
    return opened


def _part(store: hdf5_store.LayerStore) -> StorePart:
    return StorePart(
        store,
        {name: store.attributes[name] for name in CONSTANTS if name in store.attributes},
    )


def _columns(part: StorePart) -> list[str]:
    return [*part.constants, *part.store.axes, *part.store.columns]
