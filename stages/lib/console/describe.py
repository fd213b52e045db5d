"""Tables and their columns with their meaning, as `bag tables` prints them."""

from stages.lib import dictionary
from stages.lib.sql.database import ERRORS, Database, QueryError
from stages.lib.sql.missing import is_known, ways_to


def print_tables(database: Database, names: list[str]) -> None:
    """Prints these tables, without names every one there is, with its columns and their meaning."""
    described, there = dictionary.tables(), database.tables()
    if unknown := sorted(set(names) - {*there}):
        name = unknown[0]
        way = f". {ways_to(name, '<subject>')}" if is_known(name) else f", only {', '.join(there)}"
        raise QueryError(f"there is no table {name}{way}")
    for name in names or there:
        table = described.get(name)
        print(f"{name}  {table.meaning if table else ''}")
        try:
            columns = database.columns(name)
        except ERRORS as error:
            print(f"    {error}\n")
            continue
        for column, kind in columns.items():
            meaning = table.columns.get(column, ("", ""))[1] if table else ""
            print(f"    {column:<20} {kind:<10} {meaning}")
        print()
