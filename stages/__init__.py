"""Take causal language models apart on arithmetic.

`connect` opens a project's tables for SQL, in a notebook or a script. `neuron_map` draws a neuron's
map, and `ablate` runs a model without some neurons (stages/explorer/notebook.py):

    from stages import ablate, connect, neuron_map

    with connect() as bag:
        frame = bag.sql("select * from accuracy").pl()
    neuron_map("abacus", 2, 489, "add")
    ablate("abacus", ["226-68"], [(2, 489)])

Every stage imports this module first, so heavy libraries are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from stages.lib.sql.database import Database

LAZY = {"ablate": "stages.explorer.notebook", "neuron_map": "stages.explorer.notebook"}


def __getattr__(name: str) -> Any:
    """Import what a notebook uses; stages do without the explorer."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LAZY[name]), name)


def connect(project: "Path | str" = ".", *, data: "Path | str | None" = None) -> "Database":
    """Open the tables of a project for SQL that only reads.

    The result's `.sql(query, **parameters)` returns a DuckDB relation, of which `.pl()` makes a
    Polars frame and `.df()` a pandas frame, if pandas is installed. As a context manager, the
    result closes the connection at the end.

    project: the project's folder, or any folder in it; by default the working directory.
    data: a folder of tables without a project, also in object storage, such as s3://bucket/data.

    Raises QueryError if neither `project` nor a folder above it is a project.
    """
    from stages.lib.sql import database

    return database.connect(database.project_data(project) if data is None else data)
