"""Build the planted model: a loadable Llama whose neurons implement a known bag of heuristics.

It answers add and subtract. If the votes for the correct answer do not suffice, it predicts the
unknown token.

Table planted_truth: which heuristics each neuron of the planted model implements
    layer      SMALLINT  decoder layer, from 0
    neuron     INTEGER   neuron of the layer's MLP, from 0
    operator   VARCHAR   add or subtract; heuristics without cells of an operator have no row for it
    grade      VARCHAR   exact, partial (some values are left out), soft (values have errors, edges
                         of ranges are ramps), mixture (sum of two heuristics) or noise
    noise      DOUBLE    0 to 1; for partial the share of values left out, for soft twice the
                         standard deviation of the errors, 0 for exact and mixture, 1 for noise
    heuristic  VARCHAR   name as in the table heuristics; a mixture has two rows; null for noise,
                         whose functions have no structure
    votes      BOOLEAN   whether the neuron helps to write the answer; ablating other neurons
                         changes no answer
"""

import shutil
from pathlib import Path

import numpy as np
import polars as pl

from stages.corpus.prompts import Corpus
from stages.corpus.settings import Cells, Tasks
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.core.vocabulary import QUANTITIES
from stages.lib.heuristics.catalogue_grid import Heuristics
from stages.lib.model import tokenizer
from stages.lib.model.folder import write_sums
from stages.subjects.planted.model import Planting, kinks
from stages.subjects.planted.neurons import KNOWN, Candidate, PlantedBag, satisfying
from stages.subjects.settings import Planted

FOLDER = Path("data/models/planted")
LAYER = 1
SCHEMA = {
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "operator": pl.String,
    "grade": pl.String,
    "noise": pl.Float64,
    "heuristic": pl.String,
    "votes": pl.Boolean,
}


def main() -> None:
    limits, tasks, heuristics = load(Cells), load(Tasks), load(Heuristics)
    cells, facts = read_table("data/corpus/cells.parquet"), read_table("data/corpus/facts.parquet")
    known = cells.filter(pl.col("operator").is_in(KNOWN))
    bag = PlantedBag(load(Planted), limits.largest_operand)
    bag.fill(heuristics.grids[heuristics.grid], known, len(kinks(limits.largest_operand)))
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
    write_table(truth(bag, known), Path("data/subjects/planted_truth.parquet"))


def truth(bag: PlantedBag, cells: pl.DataFrame) -> pl.DataFrame:
    """Return the table `planted_truth`. cells: those of the planted model's operators."""
    names = {name for neuron in bag.neurons for name in neuron.heuristics}
    planted = satisfying(sorted(names), bag.largest)
    present = {operator: _present(planted, cells.filter(operator=operator)) for operator in KNOWN}
    rows = []
    for i, neuron in enumerate(bag.neurons):
        row = {"layer": LAYER, "neuron": i, "grade": neuron.grade, "noise": neuron.noise}
        row |= {"votes": neuron.vote > 0}
        for operator in KNOWN:
            row["operator"] = operator
            implemented = [name for name in neuron.heuristics if name in present[operator]]
            rows += [row | {"heuristic": name} for name in implemented]
            if not neuron.heuristics:
                rows.append(row | {"heuristic": None})
    return pl.DataFrame(rows, schema=SCHEMA).sort("layer", "neuron", "operator", "heuristic")


def _present(planted: list[Candidate], cells: pl.DataFrame) -> set[str]:
    """Return the names of the heuristics that some of one operator's cells satisfy."""
    values = {quantity: cells[quantity].unique().to_numpy() for quantity in QUANTITIES}
    present = set()
    for candidate in planted:
        if candidate.values[values[candidate.heuristic.quantity]].any():
            present.add(candidate.heuristic.name)
    return present


if __name__ == "__main__":
    main()
