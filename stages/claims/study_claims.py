"""Check the statements of claims.yaml that compare models, which have the key `study`.

`python -m stages.claims.study_claims training` checks those about training, for every model whose
checkpoints or fine-tuning are compared. `... digits MODEL` checks those about digits, for one model
of the section digits, whose subjects predict one digit each.

Table study_claims: one row per model and statement that compares models, and per operator if the
statement is about each operator
    subject            VARCHAR  the model that was measured; for digits, the one that predicts the
                                first digit
    claim              VARCHAR  short name of the statement
    operator           VARCHAR  add, subtract, multiply or divide; null for all of them together
    source             VARCHAR  study (heuristics, mediation or digits) and place in it
    statement          VARCHAR  the statement, and in brackets what is measured
    published          DOUBLE   the study's value of the measured quantity; null if it gives none
    published_subject  VARCHAR  model of the published value
    measured           DOUBLE   value measured on this model; null if it cannot be measured
    ci_low             DOUBLE   lower end of the measured value's interval, or least value over
                                layers or pairs; null if there is none
    ci_high            DOUBLE   upper end of the measured value's interval, or greatest value over
                                layers or pairs; null if there is none
    verdict            VARCHAR  reproduced, not reproduced, or not testable here
    query              VARCHAR  query that gives measured, for `bag -p subject=<subject>`; if there
                                is none, what is missing
"""

import sys
from itertools import product
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
    "training": """
        select last as subject from trajectory union select before from finetuned order by subject
    """,
    "digits": "select distinct subject from digit_circuits",
}


def main(study: str, model: str | None = None) -> None:
    pattern = f"{model or '*'}.parquet"
    files = {Path(table).name: sorted((DATA / table).glob(pattern)) for table in TABLES[study]}
    database = Database(files, threads=1)
    compared = database.sql(COMPARED[study]).fetchall()
    entries = [entry for entry in listed() if entry.get("study") == study]
    rows = []
    for (subject,), entry in product(compared, entries):
        rows += judged(entry, database, subject)
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    write_table(table, DATA / "claims/study_claims" / f"{model or study}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
