"""`bag made`: what a run has made, in five lines, with a query to try."""

from pathlib import Path

from stages.lib import dictionary
from stages.lib.core.settings import read
from stages.lib.sql.database import Database

QUERIES = {  # by the table that must be there, the best one first
    "labels": "select heuristic, count(*) as times from labels where subject = '{}' group by all order by times desc, heuristic limit 10",
    "accuracy": "select * from accuracy where subject = '{}'",
}


def made(database: Database, data: Path) -> list[str]:
    """At most five lines. What is missing is named with the stage that makes it."""
    subjects = _subjects(database)
    subject = _default(subjects)
    return [
        f"{_count(len(subjects), 'subject')}, {_count(len(database.tables()), 'table')}, {size_of(data)} in {data}/",
        _accuracy(database, subject),
        _labelled(database, subject),
        _page(data.parent / "reports/index.html"),
        _try(database, subject),
    ]


def _subjects(database: Database) -> list[str]:
    """Those of which some accuracy is known."""
    asked = [
        f"from {table} select subject"
        for table in ("accuracy", "task_accuracy")
        if table in database.tables()
    ]
    rows = (
        database.sql(
            f"select distinct subject from ({' union all '.join(asked)}) order by subject"
        ).fetchall()
        if asked
        else []
    )
    return [subject for (subject,) in rows]


def _default(subjects: list[str]) -> str:
    """The one that `make` is about; without params.yaml, such as beside pulled tables, the first there is."""
    return (
        read()["default"] if Path("params.yaml").exists() else next(iter(subjects), "any subject")
    )


def _accuracy(database: Database, subject: str) -> str:
    query = "select operator, sum(accuracy * cells) / sum(cells) from accuracy where subject = $subject group by operator order by operator"
    rows = (
        database.sql(query, subject=subject).fetchall() if "accuracy" in database.tables() else []
    )
    if not rows:
        return _missing(f"accuracy of {subject}", "accuracy")
    return f"{subject} answers right: " + ", ".join(
        f"{operator} {share:.2%}" for operator, share in rows
    )


def _labelled(database: Database, subject: str) -> str:
    if "labels" not in database.tables():
        return _missing(f"labelled neuron of {subject}", "labels")
    query = "select count(distinct (layer, neuron)), count(distinct heuristic) from labels where subject = $subject"
    [(neurons, heuristics)] = database.sql(query, subject=subject).fetchall()
    return (
        f"{_count(neurons, 'neuron')} of {subject} labelled with {_count(heuristics, 'heuristic')}"
    )


def _page(page: Path) -> str:
    return (
        f"The page to read: {page}"
        if page.exists()
        else f"No page {page} yet: the stage report makes it"
    )


def _try(database: Database, subject: str) -> str:
    query = next((query for table, query in QUERIES.items() if table in database.tables()), None)
    return f'Try: bag "{query.format(subject)}"' if query else "Try: bag --help"


def _missing(what: str, table: str) -> str:
    known = dictionary.tables().get(table)
    return (
        f"No {what} yet: {known.path if known else f'the stage {table}'} makes it (table {table})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_of(data: Path) -> str:
    """What the tables take on disk."""
    size = float(
        sum(path.stat().st_size for path in data.rglob("*") if path.suffix in (".parquet", ".h5"))
    )
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
