"""Keeps score of statements about training and fine-tuning, for which subjects are compared: those of claims.yaml with `study`.

Table study_claims: one row per subject and such statement, and per operator where it is about each
    subject            VARCHAR  the model that was measured
    claim              VARCHAR  its short name
    operator           VARCHAR  add, subtract, multiply or divide; null for all of them
    source             VARCHAR  study (heuristics or mediation) and place
    statement          VARCHAR  what is said, and what is measured in brackets
    published          DOUBLE   the study's value; null where it gives none
    published_subject  VARCHAR  of which model
    measured           DOUBLE   of this subject; null where it cannot be
    ci_low             DOUBLE   lower end of its interval, or least value over layers or pairs; null where there is none
    ci_high            DOUBLE   upper end
    verdict            VARCHAR  reproduced, not reproduced, or not testable here
    query              VARCHAR  gives measured, for `bag -p subject=<subject>`; where there is none, what is missing
"""

from pathlib import Path

import polars as pl

from stages.claims.ledger import SCHEMA, judged, listed
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files

TABLES = ["mediation/finetuned", "trajectory/trajectory"]


def main() -> None:
    database = Database(subject_files(None, [Path(table).name for table in TABLES]), threads=1)
    compared = database.sql("select last as subject from trajectory union select before from finetuned order by subject").fetchall()
    entries = [entry for entry in listed() if entry.get("study")]
    rows = [row for (subject,) in compared for entry in entries for row in judged(entry, database, subject)]
    write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), Path("data/claims/study_claims.parquet"))


if __name__ == "__main__":
    main()
