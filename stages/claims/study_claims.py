"""Keeps score of statements for which subjects are compared, those of claims.yaml with `study`: of training and fine-tuning, or of digits.

`python -m stages.claims.study_claims training` asks those about training of every model whose points or fine-tuning are compared,
`... digits MODEL` those about digits of one model of the section digits, whose subjects are asked for one digit each.

Table study_claims: one row per subject and such statement, and per operator where it is about each
    subject            VARCHAR  the model that was measured; of digits, the subject that is asked for the first
    claim              VARCHAR  its short name
    operator           VARCHAR  add, subtract, multiply or divide; null for all of them
    source             VARCHAR  study (heuristics, mediation or digits) and place
    statement          VARCHAR  what is said, and what is measured in brackets
    published          DOUBLE   the study's value of the measured quantity; null if it gives none
    published_subject  VARCHAR  of which model
    measured           DOUBLE   of this subject; null where it cannot be
    ci_low             DOUBLE   lower end of its interval, or least value over layers or pairs; null where there is none
    ci_high            DOUBLE   upper end
    verdict            VARCHAR  reproduced, not reproduced, or not testable here
    query              VARCHAR  gives measured, for `bag -p subject=<subject>`; where there is none, what is missing
"""

import sys
from pathlib import Path

import polars as pl

from stages.claims.ledger import SCHEMA, judged, listed
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database

DATA = Path("data")
TABLES = {
    "training": ["mediation/finetuned", "trajectory/trajectory", "trajectory/trajectory_knockouts"],
    "digits": ["neurons/digit_circuits"],
}
COMPARED = {
    "training": "select last as subject from trajectory union select before from finetuned order by subject",
    "digits": "select distinct subject from digit_circuits",
}


def main(study: str, model: str | None = None) -> None:
    files = {Path(table).name: sorted((DATA / table).glob(f"{model or '*'}.parquet")) for table in TABLES[study]}
    database = Database(files, threads=1)
    compared = database.sql(COMPARED[study]).fetchall()
    entries = [entry for entry in listed() if entry.get("study") == study]
    rows = [row for (subject,) in compared for entry in entries for row in judged(entry, database, subject)]
    write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), DATA / "claims/study_claims" / f"{model or study}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
