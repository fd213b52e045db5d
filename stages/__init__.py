"""Take causal language models apart on arithmetic.

`connect` opens a project's tables for SQL, in a notebook or a script:

    from stages import connect

    with connect() as bag:
        frame = bag.sql("select * from accuracy").pl()

Every stage imports this module first, so heavy libraries are imported in the function.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stages.lib.sql.database import Database


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
