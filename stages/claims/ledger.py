"""Read the statements of each chapter's claims.yaml, and check one against a model's tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from stages.lib.core.vocabulary import CHAPTERS, OPERATORS
from stages.lib.sql.database import Database

STAGES = Path(__file__).parents[1]
VERDICTS = {True: "reproduced", False: "not reproduced", None: "not testable here"}
SCHEMA = {
    "subject": pl.String,
    "claim": pl.String,
    "operator": pl.String,
    "source": pl.String,
    "statement": pl.String,
    "published": pl.Float64,
    "published_subject": pl.String,
    "measured": pl.Float64,
    "ci_low": pl.Float64,
    "ci_high": pl.Float64,
    "verdict": pl.String,
    "query": pl.String,
}


def listed() -> list[dict[str, Any]]:
    """Return every statement of every chapter's claims.yaml, in the order of the chapters."""
    files = (STAGES / chapter / "claims.yaml" for chapter in CHAPTERS)
    entries: list[dict[str, Any]] = []
    for file in filter(Path.exists, files):
        entries += yaml.safe_load(file.read_text(encoding="utf-8"))
    return entries


def judged(
    entry: dict[str, Any], database: Database, subject: str, operators: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of one statement.

    If its query or the study names an operator, there is a row for each that either names, and for
    each of `operators` that the statement is about: what cannot be measured is not testable. If
    neither names one, there is one row for all operators. Raises ValueError if the query gives two
    rows for one operator.
    """
    published = dict(entry["published"])
    model = published.pop("of")
    answers = []
    if "query" in entry:
        answers = database.sql(entry["query"], subject=subject).pl().rows(named=True)
    measured = {row["operator"]: row for row in answers}
    if len(measured) < len(answers):
        raise ValueError(
            f"the query of claim {entry['claim']} gives two rows for one operator; "
            "it must give at most one row for each"
        )
    named = {*measured, *published} & {*OPERATORS}
    if named:
        named |= {*operators} & {*entry.get("only", OPERATORS)}
    listed_operators: list[str | None] = [each for each in OPERATORS if each in named] or [None]
    rows = []
    for operator in listed_operators:
        answer = measured.get(operator, {})
        rows.append(
            {
                "subject": subject,
                "claim": entry["claim"],
                "operator": operator,
                "source": entry["source"],
                "statement": entry["statement"],
                "published": published.get(operator, published.get("all")),
                "published_subject": model,
                "measured": answer.get("measured"),
                "ci_low": answer.get("low"),
                "ci_high": answer.get("high"),
                "verdict": VERDICTS[answer.get("holds")],
                "query": entry.get("query", entry.get("why")),
            }
        )
    return rows
