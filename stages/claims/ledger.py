"""The ledger of statements: each chapter's claims.yaml, and how a statement is held against a subject's tables."""

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from stages.lib.core.words import CHAPTERS, OPERATORS
from stages.lib.sql.database import Database

STAGES = Path(__file__).parents[1]
VERDICTS = {True: "reproduced", False: "not reproduced", None: "not testable here"}
SCHEMA = {
    "subject": pl.String, "claim": pl.String, "operator": pl.String, "source": pl.String, "statement": pl.String, "published": pl.Float64,
    "published_subject": pl.String, "measured": pl.Float64, "ci_low": pl.Float64, "ci_high": pl.Float64, "verdict": pl.String,
    "query": pl.String,
}  # fmt: skip


def listed() -> list[dict[str, Any]]:
    """Return every statement of every chapter's claims.yaml, in the order of the chapters."""
    files = (STAGES / chapter / "claims.yaml" for chapter in CHAPTERS)
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    return [entry for text in texts for entry in yaml.safe_load(text)]


def judged(entry: dict[str, Any], database: Database, subject: str) -> list[dict[str, Any]]:
    """The rows of one statement: of the operators that the query or the study speaks of, in order; of all where neither names one."""
    published = dict(entry["published"])
    of = published.pop("of")
    asked = database.sql(entry["query"], subject=subject).pl().rows(named=True) if "query" in entry else []
    measured = {row["operator"]: row for row in asked}
    if len(measured) < len(asked):
        raise ValueError(f"the query of claim {entry['claim']} gives two rows for one operator")
    named: list[str | None] = [o for o in OPERATORS if o in measured or o in published]
    rows = []
    for operator in named or [None]:
        found = measured.get(operator, {})
        rows.append({
            "subject": subject, "claim": entry["claim"], "operator": operator, "source": entry["source"], "statement": entry["statement"],
            "published": published.get(operator, published.get("all")), "published_subject": of, "measured": found.get("measured"),
            "ci_low": found.get("low"), "ci_high": found.get("high"), "verdict": VERDICTS[found.get("holds")],
            "query": entry.get("query", entry.get("why")),
        })  # fmt: skip
    return rows
