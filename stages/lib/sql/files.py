"""Which files make up which table, and how they are opened together: Parquet as a dataset of pyarrow, HDF5 as parts of a lazy table."""

from collections.abc import Iterable
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from stages.lib.core import layered, shards
from stages.lib.core.files import PARTS, way_out
from stages.lib.core.tables import damaged
from stages.lib.core.words import CHAPTERS
from stages.lib.sql.lazy.where import StorePart

TABLES = (".parquet", ".h5")
MEASURES = {"activations": "activation", "value_logits": "logit"}  # lazy table -> its measure


def subject_files(subject: str | None, tables: list[str], data: Path = Path("data")) -> dict[str, list[Path]]:
    """The files of these tables for a Database that sees nothing else: a subject's own, and those that are about none or about several.

    Where such a table is a folder with a file of this subject, data/claims/claims/<subject>.parquet, it is that file: what a stage
    says of one subject must not hang on which others have come so far.
    """
    folders = [*([subject] if subject else []), *CHAPTERS]
    found = files_of((path for folder in folders for path in (data / folder).rglob("*")), data)
    return {
        name: [path for path in paths if path.stem == subject and path.parents[2] == data] or paths
        for name, paths in found.items()
        if name in tables
    }


def files_of(paths: Iterable[Path], data: Path = Path("data")) -> dict[str, list[Path]]:
    """The files of each table among paths below `data`; of folders, all that is in them.

    A table is what stands behind its chapter: data/<subject>/<chapter>/<table>.parquet, or, where it is about no subject or about
    several, data/<chapter>/<table>.parquet. It may be a folder of files, such as activations/<operator>.h5, or of shards. What a stage has
    not finished, parts in folders of their own and shards that no manifest lists yet, is of no table.
    """
    found: dict[str, list[Path]] = {}
    files = {PurePath(file.as_posix()): file for path in paths for file in ([path] if path.suffix in TABLES else path.rglob("*"))}
    for name, file in sorted(files.items()):
        if name.suffix in TABLES and (table := table_of(name.relative_to(data.as_posix()))):
            found.setdefault(table, []).append(file)
    return found


def table_of(path: PurePath) -> str | None:
    """The table that a file below data/ is (part of), None if it is of none."""
    if any(folder.suffix == PARTS for folder in path.parents):
        return None
    for chapter, behind, within in zip(path.parts[:2], path.parts[1:3], (path.parts[2:], path.parts[3:]), strict=False):
        if chapter in CHAPTERS:
            name = Path(behind).stem
            whole = path.suffix == ".h5" and len(within) <= 1  # further in are shards, which count as the manifest says
            stored = whole or path.name == shards.MANIFEST
            return name if (stored if name in MEASURES else path.suffix == ".parquet") else None
    return None


def parquet(paths: list[Path]) -> list[Path]:
    """Those that are Parquet."""
    return [path for path in paths if path.suffix == ".parquet"]


def dataset(paths: list[Path]) -> ds.Dataset:
    """Files of one table, whose columns are put together by name. Raises TableError on one that is no table."""
    storage, names = None, [path.absolute().as_posix() for path in paths]
    if not isinstance(paths[0], Path):
        storage, names = FileSystem.from_uri(str(paths[0]))[0], [path.path for path in paths]
    schemas = []
    for path, name in zip(paths, names, strict=True):
        try:
            schemas.append(pq.read_schema(name, filesystem=storage))
        except (OSError, pa.ArrowException) as error:
            if not isinstance(path, Path) or getattr(error, "errno", None):
                # object storage has errors of its own; one that the system numbers, such as a
                # refused permission, is no damage
                raise
            raise damaged(path, str(error).strip()) from None
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return ds.dataset(names, schema=schema, format="parquet", filesystem=storage)


def parts(paths: list[Path]) -> list[StorePart]:
    """The stores in these files, and those that manifests among them list.

    Raises StoreError on one that has other axes, columns or keys than the first: it would give rows to a table that is not its own.
    """
    folders = {path.parent for path in paths if path.name == shards.MANIFEST}
    alone = [path for path in paths if path.suffix == ".h5" and not folders & set(path.parents)]
    opened = [*(one for folder in sorted(folders) for one in shards.stores(folder)), *map(layered.LayerStore, alone)]
    found = [StorePart(one, {name: one.attributes[name] for name in ("subject", "operator") if name in one.attributes}) for one in opened]
    kinds = [[*part.constants, *part.store.axes, *part.store.columns] for part in found]
    for part, kind in zip(found, kinds, strict=True):
        if kind != kinds[0]:
            has = f"has {', '.join(kind)}; {found[0].store.path} has {', '.join(kinds[0])}"
            raise layered.StoreError(f"{part.store.path} {has}. One of them is no store of this table; {way_out(part.store.path)}")
    return found
