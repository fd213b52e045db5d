"""Print tables and their columns with their meaning, for `bag tables`."""

from pathlib import Path

from stages.lib import dictionary
from stages.lib.sql.database import ERRORS, Database, QueryError
from stages.lib.sql.missing import is_known, ways_to

UNDOCUMENTED = dictionary.Table("", Path(), "", {})


def print_tables(database: Database, names: list[str]) -> None:
    """Print these tables, or all without names, with their columns and their meaning."""
    documented, present = dictionary.tables(), database.tables()
    unknown = sorted({*names}.difference(present))
    if unknown:
        name = unknown[0]
        if is_known(name):
            raise QueryError(f"there is no table {name} here. {ways_to(name, '<subject>')}")
        raise QueryError(f"unknown table {name}; available tables: {', '.join(present)}")
    for name in names or present:
        table = documented.get(name, UNDOCUMENTED)
        print(f"{name}  {table.meaning}")
        try:
            columns = database.columns(name)
        except ERRORS as error:
            print(f"    {error}\n")
            continue
        for column, kind in columns.items():
            _, meaning = table.columns.get(column, ("", ""))
            print(f"    {column:<20} {kind:<10} {meaning}")
        print()
