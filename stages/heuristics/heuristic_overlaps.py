"""Measure how many cells the heuristics that describe a model's neurons have in common.

A heuristic that overlaps a better one is redundant. The table scores tells which heuristics
describe neurons. Cells are those for which the model has an answer.

Table heuristic_overlaps: pairs of heuristics that share more cells than chance, in both orders
    subject    VARCHAR  the model
    operator   VARCHAR  add, subtract, multiply or divide
    heuristic  VARCHAR  name of a heuristic in the table scores
    other      VARCHAR  name of another heuristic in the table scores
    overlap    FLOAT    share of the smaller heuristic's cells that the larger one has,
                        corrected for chance: 0 is chance, 1 is inclusion
    same       BOOLEAN  whether both heuristics have the same cells
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from stages.heuristics.settings import Overlaps
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.grid import answered
from stages.lib.heuristics.members import listed, members
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {
    "subject": pl.String,
    "operator": pl.String,
    "heuristic": pl.String,
    "other": pl.String,
    "overlap": pl.Float32,
    "same": pl.Boolean,
}


def main(name: str) -> None:
    subject, smallest = Subject.named(name), load(Overlaps).smallest_overlap
    catalogue = read_table("data/heuristics/heuristics.parquet")
    scores = [subject.path("heuristics/scores.parquet")]
    cells = [Path("data/corpus/cells.parquet")]
    database = Database({"cells": cells, "scores": scores}, threads=1)
    scored = database.sql("select distinct operator, heuristic from scores").pl()
    numbers = answer_tokens.numbers(subject.value_logits())
    frames = [pl.DataFrame(schema=SCHEMA)]
    for store in subject.activation_stores():
        operator = store.attributes["operator"]
        names = scored.filter(operator=operator)["heuristic"].sort().to_list()
        heuristics = listed(catalogue, operator, names)
        has_answer = answered(database, operator, store.columns["result"])
        satisfied = members(database, operator, heuristics, numbers)[:, has_answer]
        frame = overlaps(names, satisfied, smallest)
        constants = {"subject": pl.lit(name), "operator": pl.lit(operator)}
        frames.append(frame.with_columns(**constants).select(list(SCHEMA)))
    table = pl.concat(frames).sort("operator", "heuristic", "other")
    write_table(table, subject.path("heuristics/heuristic_overlaps.parquet"))


def overlaps(names: list[str], satisfied: np.ndarray, smallest: float) -> pl.DataFrame:
    """Return pairs of heuristics whose overlap is at least `smallest`, in both orders.

    names: (heuristics,); satisfied: (heuristics, cells) bool.
    """
    sizes = satisfied.sum(1)
    wide = satisfied.astype(np.float32)
    shared = np.rint(wide @ wide.T).astype(np.int64)  # whole numbers far below 2^24: exact
    fewer, more = np.minimum.outer(sizes, sizes), np.maximum.outer(sizes, sizes)
    share = more / satisfied.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        chance_corrected = (shared / fewer - share) / (1 - share)
    overlap = np.where((share < 1) & (fewer > 0), chance_corrected, 0)
    np.fill_diagonal(overlap, -1)
    first, second = np.nonzero(overlap >= smallest)
    is_same = (shared == more) & (shared == fewer)
    columns = {
        "heuristic": np.array(names, object)[first],
        "other": np.array(names, object)[second],
        "overlap": overlap[first, second],
        "same": is_same[first, second],
    }
    schema = {name: SCHEMA[name] for name in columns}
    return pl.DataFrame(columns, schema=schema, strict=False)


if __name__ == "__main__":
    main(sys.argv[1])
