"""Find the prompts associated with each heuristic: those whose cell satisfies it.

Only heuristics that some neuron has a score for are considered. The stage reads
data/heuristics/heuristics.parquet and the model's pairs.parquet, scores.parquet and
value_logits.h5. It writes data/<subject>/bag/prompt_associations.parquet. A prompt that has no row
with a heuristic is not associated with it.

Table prompt_associations: the heuristics that the clean prompt of each pair satisfies
    subject    VARCHAR  the model
    operator   VARCHAR  operator of the clean prompt: add, subtract, multiply or divide
    pair       INTEGER  number of the pair, of either split, as in pairs
    heuristic  VARCHAR  name of a heuristic that some neuron has a row for in scores, with this
                        operator
"""

import sys

import numpy as np
import polars as pl

from stages.lib.core.tables import read_table, write_table
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.members import listed, members
from stages.lib.heuristics.names import Heuristic
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

SCHEMA = {"operator": pl.String, "pair": pl.Int32, "heuristic": pl.String}


def main(name: str) -> None:
    subject = Subject.named(name)
    # the prompts take the place of the cells, because a predicate is evaluated on single cells
    files = {"cells": "circuit/pairs.parquet", "scores": "heuristics/scores.parquet"}
    database = Database({name: [subject.path(files[name])] for name in files}, threads=1)
    names = database.sql("select distinct operator, heuristic from scores").pl()
    pairs = subject.table("circuit/pairs.parquet", ["operator", "op1", "op2", "pair"])
    catalogue = read_table("data/heuristics/heuristics.parquet")
    has_whole_answers = subject.settings.answer_token is None
    numbers = None if has_whole_answers else answer_tokens.numbers(subject.value_logits())
    frames = [pl.DataFrame(schema=SCHEMA)]
    for operator in pairs["operator"].unique().sort():
        scored = names.filter(operator=operator)["heuristic"].sort()
        heuristics = listed(catalogue, operator, scored)
        # the order of `members`, which does not tell equal prompts apart
        prompts = pairs.filter(operator=operator).sort("op1", "op2")
        holds = members(database, operator, heuristics, numbers)
        frames.append(satisfied(prompts, heuristics, holds))
    table = pl.concat(frames).select(pl.lit(name).alias("subject"), pl.all())
    path = subject.path("bag/prompt_associations.parquet")
    write_table(table.sort("operator", "pair", "heuristic"), path)


def satisfied(
    prompts: pl.DataFrame, heuristics: list[Heuristic], holds: np.ndarray
) -> pl.DataFrame:
    """Return one row for each prompt and each heuristic that it satisfies.

    holds: bool (heuristics, prompts).
    """
    heuristic, prompt = np.nonzero(holds)
    names = pl.Series("heuristic", [each.name for each in heuristics], pl.String)
    return prompts.select("operator", "pair")[prompt].with_columns(names[heuristic])


if __name__ == "__main__":
    main(sys.argv[1])
