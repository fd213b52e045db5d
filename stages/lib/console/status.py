"""`bag status`: summarise in five lines what is computed, with a query to try."""

import argparse
from pathlib import Path

from stages.lib import dictionary
from stages.lib.console.common import add_data, folder
from stages.lib.console.output import remark
from stages.lib.core.settings import sections_of
from stages.lib.sql.database import Database, connect

# a query to try, by the table that it needs; the first one that can run is shown
QUERIES = {
    "labels": (
        "select heuristic, count(*) as times from labels where subject = '{}' "
        "group by all order by times desc, heuristic limit 10"
    ),
    "accuracy": "select * from accuracy where subject = '{}'",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)


def run(options: argparse.Namespace) -> None:
    data = folder(options.data)
    print("\n".join(status(connect(data, tell=remark), data)))


def status(database: Database, data: Path) -> list[str]:
    """Return five lines. A line names the stage that makes what is missing."""
    subjects = _subjects(database)
    subject = _shown(subjects, data.parent)
    counts = f"{_count(len(subjects), 'subject')}, {_count(len(database.tables()), 'table')}"
    return [
        f"{counts}, {size_of(data)} in {data}/",
        _accuracy(database, subject),
        _labelled(database, subject),
        _page(data.parent / "reports/index.html"),
        _try(database, subject),
    ]


def _subjects(database: Database) -> list[str]:
    """Return the subjects with some accuracy."""
    subjects: set[str] = set()
    for table in {"accuracy", "task_accuracy"}.intersection(database.tables()):
        rows = database.sql(f"select distinct subject from {table}").fetchall()
        subjects.update(subject for (subject,) in rows)
    return sorted(subjects)


def _shown(subjects: list[str], project: Path) -> str:
    """Return the default subject if the project has results of it, or if it has none of others."""
    default = ""
    params = project / "params.yaml"
    if params.exists():
        default = sections_of(params, params.read_text(encoding="utf-8")).get("default", "")
    if default in subjects:
        return default
    return next(iter(subjects), default or "any subject")


def _has(database: Database, table: str, subject: str) -> bool:
    """Return whether a subject has its own table of this name, perhaps without rows."""
    return any(subject in path.parts for path in database.files.get(table, []))


def _accuracy(database: Database, subject: str) -> str:
    """Return the accuracy of each operator, with that of the most frequent answer if known."""
    rows = []
    if "accuracy" in database.tables():
        majority = "null"
        if "majority_accuracy" in database.columns("accuracy"):
            majority = "sum(majority_accuracy * cells) / sum(cells)"
        query = f"""
            select operator, sum(accuracy * cells) / sum(cells), {majority} from accuracy
            where subject = $subject group by operator order by operator
        """
        rows = database.sql(query, subject=subject).fetchall()
    if not rows:
        return _missing(f"accuracy of {subject}", "accuracy")
    shares, what = [], ""
    for operator, accuracy, baseline in rows:
        shares.append(f"{operator} {accuracy:.2%}")
        if baseline is not None:
            what = " (of the most frequent answer)"
            shares[-1] += f" ({baseline:.2%})"
    return f"accuracy of {subject}{what}: {', '.join(shares)}"


def _labelled(database: Database, subject: str) -> str:
    if not _has(database, "labels", subject):
        return _missing(f"labelled neuron of {subject}", "labels")
    query = """
        select count(distinct (layer, neuron)), count(distinct heuristic) from labels
        where subject = $subject
    """
    [(neurons, heuristics)] = database.sql(query, subject=subject).fetchall()
    labels = _count(heuristics, "heuristic")
    return f"{_count(neurons, 'neuron')} of {subject} labelled with {labels}"


def _page(page: Path) -> str:
    if page.exists():
        return f"The page to read: {page}"
    return f"No page {page} yet: the stage report makes it"


def _try(database: Database, subject: str) -> str:
    for table, query in QUERIES.items():
        if _has(database, table, subject):
            return f'Try: bag "{query.format(subject)}"'
    return "Try: bag --help"


def _missing(what: str, table: str) -> str:
    documented = dictionary.tables()
    maker = documented[table].path if table in documented else f"the stage {table}"
    return f"No {what} yet: {maker} makes it (table {table})"


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def size_of(data: Path) -> str:
    """Return the disk space of the tables, in B, kB, MB or GB."""
    size = 0.0
    for path in data.rglob("*"):
        if path.suffix in (".parquet", ".h5"):
            size += path.stat().st_size
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
