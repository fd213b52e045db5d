"""Check every statement of the studies against this model's tables.

Each chapter's claims.yaml has its statements, with the published value and the query that measures
it. Statements that compare models are in study_claims.

Table claims: one row per statement, and per operator if the statement is about each operator
    subject            VARCHAR  the model that was measured
    claim              VARCHAR  short name of the statement
    operator           VARCHAR  add, subtract, multiply or divide; null for all of them together
    source             VARCHAR  study (heuristics, mediation, trigonometry, fourier, digits
                                or manipulation: stages/claims/README.md) and place in it
    statement          VARCHAR  the statement, and in brackets what is measured
    published          DOUBLE   the study's value of the measured quantity; null if it gives none
    published_subject  VARCHAR  model of the published value
    measured           DOUBLE   value measured on this model; null if it cannot be measured
    ci_low             DOUBLE   lower end of the measured value's interval, or what the statement
                                names in its place, such as the least value over layers or chance;
                                null if there is none
    ci_high            DOUBLE   upper end of the measured value's interval, or what the statement
                                names in its place, such as the greatest value or a ceiling; null if
                                there is none
    verdict            VARCHAR  reproduced, not reproduced, or not testable here
    query              VARCHAR  query that gives measured, for `bag -p subject=<subject>`; if there
                                is none, what is missing
"""

import sys
from pathlib import Path

import polars as pl

from stages.claims.ledger import SCHEMA, judged, listed
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database
from stages.lib.sql.files import subject_files
from stages.lib.subject import Subject

TABLES = [
    "bag/failure_controls.parquet",
    "bag/failure_tests.parquet",
    "bag/knockout_tests.parquet",
    "bag/knockouts_by_heuristic.parquet",
    "bag/knockouts_by_neuron.parquet",
    "bag/knockouts_by_prompt.parquet",
    "bag/steering.parquet",
    "circuit/attention_sources.parquet",
    "circuit/circuit_heads.parquet",
    "circuit/cut_faithfulness.parquet",
    "circuit/late_layers.parquet",
    "circuit/probes.parquet",
    "circuit/smallest_circuits.parquet",
    "heuristics/classified_share.parquet",
    "heuristics/discovered.parquet",
    "heuristics/label_votes.parquet",
    "heuristics/scores.parquet",
    "mediation/mediation_effects.parquet",
    "mediation/neuron_overlap.parquet",
    "mediation/relative_importance.parquet",
    "neurons/causal_votes.parquet",
    "neurons/faithfulness.parquet",
    "neurons/neuron_effects.parquet",
    "neurons/operator_overlaps.parquet",
    "store/architecture.parquet",
    "subjects/planted_truth.parquet",
    "theories/helix_effects.parquet",
    "theories/helix_fits.parquet",
    "theories/theories.parquet",
]


def main(name: str) -> None:
    subject = Subject.named(name)
    files = subject_files(subject.name, [Path(table).stem for table in TABLES])
    database = Database(files, threads=1)
    rows = []
    for entry in listed():
        if not entry.get("study"):
            rows += judged(entry, database, subject.name, subject.settings.operators)
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    write_table(table, Path("data/claims/claims") / f"{subject.name}.parquet")


if __name__ == "__main__":
    main(sys.argv[1])
