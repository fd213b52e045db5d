"""A project by hand, in a moment: the micro project has no subject that is asked for one token of the answer.

`digits` adds numbers 0 to SIDE - 1 and is asked for the tens of the result, where there are any.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from stages.explorer.explorer import Explorer
from stages.explorer.live import GridPart, Neurons, Prediction
from stages.explorer.models import Loaded
from stages.explorer.project import Project
from stages.lib.core.layered import LayerWriter, writing
from stages.lib.core.tables import write_table

SUBJECT, SIDE, NEURONS = "digits", 13, 6
TENS = [result // 10 if result >= 10 else -1 for result in range(2 * SIDE - 1)]
HEURISTICS = ["asked = 1", "result in 10..14", "carry into 10"]  # of the neurons 0, 1 and 2; the catalogue has the second alone
CELLS = [("add", op1, op2, op1 + op2) for op1, op2 in product(range(SIDE), repeat=2)]
KEYS = {"operator": pl.String, "op1": pl.Int32, "op2": pl.Int32}
NAMED = {"subject": SUBJECT, "asked": ",".join(map(str, TENS))}  # attributes of stores
TOKEN = 20  # of the number 0


def tables() -> dict[str, pl.DataFrame]:
    """Those of the store and of heuristics that views read, by their place below data."""
    cells = pl.DataFrame(CELLS, KEYS | {"result": pl.Int32}, orient="row")
    subject, asked = pl.lit(SUBJECT).alias("subject"), pl.col("result").replace_strict(dict(enumerate(TENS)), return_dtype=pl.Int32)
    answered = cells.with_columns(subject, asked.alias("asked")).filter(pl.col("asked") >= 0)
    stands = [(SUBJECT, "add", "called", 0, neuron, name, 0.9 - neuron / 10, True) for neuron, name in enumerate(HEURISTICS)]
    columns = ["subject", "operator", "membership", "layer", "neuron", "heuristic", "corrected", "late"]
    standing = pl.DataFrame(stands, columns, orient="row").cast({"layer": pl.Int16, "neuron": pl.Int32, "corrected": pl.Float32})
    known = pl.DataFrame({"operator": ["add"], "heuristic": [HEURISTICS[1]], "kind": ["range"], "quantity": ["result"]})
    scores = standing.with_columns(side=pl.lit("top"), score=pl.lit(1.0), share=pl.lit(0.5)).drop("membership", "late")
    return {
        "corpus/cells": cells,
        "heuristics/heuristics": known.with_columns(predicate=pl.lit("result between 10 and 14")),
        "heuristics/label_setting": pl.DataFrame({"threshold": [0.5]}),
        f"{SUBJECT}/store/numbers": pl.DataFrame({"number": range(10)}).select(subject, "number", token=pl.col("number") + TOKEN),
        f"{SUBJECT}/store/prompts": answered.with_columns(answer_token=pl.col("asked") + TOKEN).drop("asked"),
        f"{SUBJECT}/store/predictions": answered.select(
            "subject", *KEYS, predicted="asked", correct=pl.lit(True), answer_probability=pl.lit(0.9)
        ),
        f"{SUBJECT}/heuristics/heuristic_neurons": standing,
        f"{SUBJECT}/heuristics/scores": scores,
    }


def made(root: Path) -> Path:
    """Writes the project's data below a folder, and says where."""
    data, draw = root / "data", np.random.default_rng(0)
    for place, table in tables().items():
        (data / place).parent.mkdir(parents=True, exist_ok=True)
        write_table(table, data / f"{place}.parquet")
    (data / SUBJECT / "store/activations").mkdir()
    write_activations(data, draw.normal(size=(NEURONS, SIDE, SIDE)))
    with writing(data / SUBJECT / "store/value_logits.h5") as file:
        LayerWriter(file, [0], {"neuron": NEURONS, "number": 10}, "float32", (4, 10), NAMED).write(0, 0, draw.normal(size=(NEURONS, 10)))
    return data


def write_activations(data: Path, values: np.ndarray) -> None:
    """The store of activations. values: (neuron, op1, op2)."""
    results = np.add.outer(np.arange(SIDE), np.arange(SIDE))
    columns = {"result": np.where(results >= 10, results, -1)}
    axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
    with writing(data / SUBJECT / "store/activations/add.h5") as file:
        LayerWriter(file, [0], axes, "float16", (4, 5, SIDE), {"operator": "add", **NAMED}, columns=columns).write(0, 0, values)


class Anything:
    """A model that says anything, and the same whatever is silenced."""

    def __init__(self, project: Project):
        self.project, self.logits = project, np.random.default_rng(1).normal(size=TOKEN + 10)

    def cell(self, operator: str, op1: int, op2: int) -> pl.DataFrame:
        query = "from prompts where operator = $operator and op1 = $op1 and op2 = $op2"
        return self.project.ask(query, operator=operator, op1=op1, op2=op2)

    def predict(self, *_: object) -> Prediction:
        return Prediction(self.logits, [np.ones(NEURONS)], 1.0)

    def random(self, like: Neurons, seed: int) -> Neurons:
        return [(layer, (neuron + seed) % NEURONS) for layer, neuron in like]

    def ablated(self, _: pl.DataFrame, sets: list[Neurons], *how: object) -> list[np.ndarray]:
        return [self.logits] * len(sets)

    def grid(self, operator: str, *how: object) -> Iterator[GridPart]:
        cells = self.project.ask("from prompts where operator = $operator order by op1, op2", operator=operator)
        op1, op2, answers = (cells[name].to_numpy() for name in ("op1", "op2", "answer_token"))
        predicted = np.full((3, len(cells)), TOKEN)
        yield GridPart(len(cells), len(cells), op1, op2, answers, predicted)


def explorer(data: Path) -> Explorer:
    """With a model that says anything."""
    found = Explorer(Project(data))
    found.models._loaded[SUBJECT] = Loaded(found.project.made_of(SUBJECT), Anything(found.project))
    return found
