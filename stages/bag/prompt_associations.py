"""Says which prompts each heuristic that any neuron comes near is about: those whose own cell satisfies it.

Reads data/heuristics/heuristics.parquet and the subject's pairs.parquet, scores.parquet and value_logits.h5; writes
data/<subject>/bag/prompt_associations.parquet. A prompt without a row of a heuristic is not associated with it, whether or not it was
ever looked at.

Table prompt_associations: the heuristics that the clean prompt of each pair satisfies
    subject    VARCHAR  the model
    operator   VARCHAR  of the clean prompt
    pair       INTEGER  as in pairs, of both splits
    heuristic  VARCHAR  one that some neuron has a row of in scores, on this operator
"""

import sys

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import asked
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.names import Heuristic
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {"operator": pl.String, "pair": pl.Int32, "heuristic": pl.String}


def main(name: str) -> None:
    subject = Subject.named(name)
    # The prompts stand in for the cells: a predicate is about one at a time.
    database = Database({"cells": [subject.path("circuit/pairs.parquet")]}, threads=1)
    named = subject.table("heuristics/scores.parquet", ["operator", "heuristic"]).unique()
    pairs = subject.table("circuit/pairs.parquet", ["operator", "op1", "op2", "pair"])
    catalogue = read_table("data/heuristics/heuristics.parquet")
    numbers = None if subject.settings.answer_token is None else asked.numbers(subject.votes())
    frames = [pl.DataFrame(schema=SCHEMA)]
    for operator in pairs["operator"].unique().sort():
        of = listed(catalogue, operator, named.filter(operator=operator)["heuristic"].sort())
        prompts = pairs.filter(operator=operator).sort("op1", "op2")  # the order of `members`, in which equal prompts are equal
        frames.append(satisfied(prompts, of, members(database, operator, of, numbers)))
    table = pl.concat(frames).select(pl.lit(name).alias("subject"), pl.all()).sort("operator", "pair", "heuristic")
    write_table(table, subject.path("bag/prompt_associations.parquet"))


def satisfied(prompts: pl.DataFrame, heuristics: list[Heuristic], holds: np.ndarray) -> pl.DataFrame:
    """One row for each prompt and each heuristic that it satisfies; holds: bool (heuristics, prompts)."""
    which, at = np.nonzero(holds)
    names = pl.Series("heuristic", [heuristic.name for heuristic in heuristics], pl.String)
    return prompts.select("operator", "pair")[at].with_columns(names[which])


if __name__ == "__main__":
    main(sys.argv[1])
