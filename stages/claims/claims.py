"""Keeps score: every checkable statement of both studies and of those since, and what this subject's tables say of it.

Each chapter's claims.yaml has its statements, with the published value and the query that measures it. Those that take other subjects
as well are in study_claims.

Table claims: one row per statement, and per operator where it is about each
    subject            VARCHAR  the model that was measured
    claim              VARCHAR  its short name
    operator           VARCHAR  add, subtract, multiply or divide; null for all of them
    source             VARCHAR  study (heuristics, mediation, trigonometry, fourier or digits: stages/claims/README.md) and place
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
from stages.lib.sql.files import subject_files
from stages.lib.subject import Subject

TABLES = [
    "bag/failure_controls.parquet", "bag/failure_tests.parquet", "bag/knockout_tests.parquet",
    "bag/knockouts_by_heuristic.parquet", "bag/knockouts_by_neuron.parquet",
    "bag/knockouts_by_prompt.parquet", "circuit/attention_sources.parquet",
    "circuit/circuit_heads.parquet", "circuit/cut_faithfulness.parquet",
    "circuit/late_layers.parquet", "circuit/probes.parquet", "circuit/smallest_circuits.parquet",
    "heuristics/classified_share.parquet", "heuristics/scores.parquet",
    "mediation/mediation_effects.parquet", "mediation/neuron_overlap.parquet",
    "mediation/relative_importance.parquet", "neurons/faithfulness.parquet",
    "neurons/neuron_effects.parquet", "neurons/operator_overlaps.parquet",
    "store/architecture.parquet", "subjects/planted_truth.parquet",
    "theories/helix_effects.parquet", "theories/helix_fits.parquet", "theories/theories.parquet",
]  # fmt: skip


def main(name: str) -> None:
    subject = Subject.named(name)
    database = Database(subject_files(subject.name, [Path(table).stem for table in TABLES]), threads=1)
    rows = [row for entry in listed() if not entry.get("study") for row in judged(entry, database, subject.name)]
    write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), Path("data/claims/claims") / f"{subject.name}.parquet")


if __name__ == "__main__":
    main(sys.argv[1])
