"""How much the heuristics that describe a subject's neurons have in common: one that overlaps a better one says nothing new.

Which heuristics these are, `scores` says. Cells are those on which neurons are scored: those for which the subject has an answer.

Table heuristic_overlaps: pairs of heuristics that share more cells than chance, in both orders
    subject    VARCHAR  the model
    operator   VARCHAR  add, subtract, multiply or divide
    heuristic  VARCHAR  as in scores
    other      VARCHAR  as in scores
    overlap    FLOAT    share of the smaller one's cells that the larger one has, above chance: 0 is chance, 1 is inclusion
    same       BOOLEAN  whether they are the same cells
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.settings import Overlaps
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.square import answered
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String, "operator": pl.String, "heuristic": pl.String, "other": pl.String, "overlap": pl.Float32, "same": pl.Boolean,
}  # fmt: skip


def main(name: str) -> None:
    subject, smallest = Subject.named(name), load(Overlaps).smallest_overlap
    used = subject.table("heuristics/scores.parquet", ["operator", "heuristic"]).unique().sort("operator", "heuristic")
    catalogue = read_table("data/heuristics/heuristics.parquet")
    database = Database({"cells": [Path("data/corpus/cells.parquet")]}, threads=1)
    results = {store.attributes["operator"]: store.columns["result"] for store in subject.squares()}
    frames = [pl.DataFrame(schema=SCHEMA)]
    for (operator,), names in used.group_by("operator", maintain_order=True):
        heuristics = listed(catalogue, str(operator), names["heuristic"])
        cells = answered(database, str(operator), results[operator])
        satisfied = members(database, str(operator), heuristics, asked.numbers(subject.votes()))[:, cells]
        frame = overlaps(names["heuristic"].to_list(), satisfied, smallest)
        constants = {"subject": pl.lit(name), "operator": pl.lit(operator)}
        frames.append(frame.with_columns(**constants).select(list(SCHEMA)))
    write_table(pl.concat(frames).sort("operator", "heuristic", "other"), subject.path("heuristics/heuristic_overlaps.parquet"))


def overlaps(names: list[str], satisfied: np.ndarray, smallest: float) -> pl.DataFrame:
    """Both orders of the pairs that overlap at least so much. satisfied: (heuristics, cells) bool."""
    sizes = satisfied.sum(1)
    wide = satisfied.astype(np.float32)
    shared = np.rint(wide @ wide.T).astype(np.int64)  # whole numbers far below 2^24: exact
    fewer, more = np.minimum.outer(sizes, sizes), np.maximum.outer(sizes, sizes)
    share = more / satisfied.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        overlap = np.where((share < 1) & (fewer > 0), (shared / fewer - share) / (1 - share), 0)
    np.fill_diagonal(overlap, -1)
    first, second = np.nonzero(overlap >= smallest)
    columns = {
        "heuristic": np.array(names, object)[first], "other": np.array(names, object)[second], "overlap": overlap[first, second],
        "same": (shared == more)[first, second] & (shared == fewer)[first, second],
    }  # fmt: skip
    return pl.DataFrame(columns, schema={name: SCHEMA[name] for name in columns}, strict=False)


if __name__ == "__main__":
    main(sys.argv[1])
