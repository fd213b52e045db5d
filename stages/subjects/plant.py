"""Builds a subject whose neurons are known: a loadable Llama model, made from a bag of heuristics instead of trained.

The model answers add and subtract; where the votes for the right answer do not suffice, it says the unknown token.

Table planted_truth: which heuristics the planted subject's neurons implement
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0
    operator   VARCHAR   add or subtract; a heuristic without cells of an operator is left out there
    grade      VARCHAR   exact, partial (some values left out), soft (values off, edges of ranges are ramps), mixture or noise
    noise      DOUBLE    of partial the share left out, of soft twice the deviation of the error; 0 of exact and mixture, 1 of noise
    heuristic  VARCHAR   as in heuristics; a mixture is the sum of two, a row each; null for noise, which is functions without structure
    votes      BOOLEAN   whether the neuron helps to write the answer; no other changes one
"""

import shutil
from pathlib import Path

import numpy as np
import polars as pl

from stages.corpus.prompts import Corpus
from stages.corpus.settings import Cells, Tasks
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.words import QUANTITIES
from stages.lib.heuristics.grid import Heuristics
from stages.lib.model import tokenizer
from stages.lib.model.folder import write_sums
from stages.subjects.planted.model import Planting, kinks
from stages.subjects.planted.neurons import KNOWN, PlantedBag, satisfying
from stages.subjects.settings import Planted

FOLDER = Path("data/models/planted")
LAYER = 1


def main() -> None:
    limits, tasks, heuristics = load(Cells), load(Tasks), load(Heuristics)
    cells, facts = read_table("data/corpus/cells.parquet"), read_table("data/corpus/facts.parquet")
    asked = cells.filter(pl.col("operator").is_in(KNOWN))
    bag = PlantedBag(load(Planted), limits.largest_operand)
    bag.fill(heuristics.grids[heuristics.grid], asked, len(kinks(limits.largest_operand)))
    corpus = Corpus(tasks, cells, facts, np.ones(len(cells)), split=None)
    own = tokenizer.build(limits.largest_answer, [*corpus.texts(), "="])
    symbols = (tasks.operators["add"].symbol, tasks.operators["subtract"].symbol)
    model = Planting(bag, own, symbols, limits.largest_answer).model()
    partial = FOLDER.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    own.save_pretrained(partial)
    write_sums(partial)
    shutil.rmtree(FOLDER, ignore_errors=True)
    partial.rename(FOLDER)
    write_table(truth(bag, asked), Path("data/subjects/planted_truth.parquet"))


def truth(bag: PlantedBag, cells: pl.DataFrame) -> pl.DataFrame:
    """The table `planted_truth`; cells: of the operators that are asked."""
    planted = satisfying(
        sorted({name for neuron in bag.neurons for name in neuron.heuristics}), bag.largest
    )
    present = {}
    for operator in KNOWN:
        values = {q: cells.filter(operator=operator)[q].unique().to_numpy() for q in QUANTITIES}
        present[operator] = {
            c.heuristic.name for c in planted if c.values[values[c.heuristic.quantity]].any()
        }
    rows = [
        (LAYER, i, operator, neuron.grade, neuron.noise, name, neuron.vote > 0)
        for i, neuron in enumerate(bag.neurons)
        for operator in KNOWN
        for name in neuron.heuristics or [None]
        if name is None or name in present[operator]
    ]
    schema = {
        "layer": pl.Int16, "neuron": pl.Int32, "operator": pl.String, "grade": pl.String, "noise": pl.Float64,
        "heuristic": pl.String, "votes": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row").sort(
        "layer", "neuron", "operator", "heuristic"
    )


if __name__ == "__main__":
    main()
