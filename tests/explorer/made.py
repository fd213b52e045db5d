"""Write a project by hand, with a model that predicts one token of the answer.

The micro project has no such model. `digits` adds numbers from 0 to SIDE - 1 and predicts the tens
of the result, if there are any.
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
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.core.tables import write_table

SUBJECT, SIDE, NEURONS = "digits", 13, 6
RESULTS = np.arange(2 * SIDE - 1)
TENS = np.where(RESULTS >= 10, RESULTS // 10, -1).tolist()
# of the neurons 0, 1 and 2; the catalogue has only the second
HEURISTICS = ["asked = 1", "result in 10..14", "carry into 10"]
CELLS = [("add", op1, op2, op1 + op2) for op1, op2 in product(range(SIDE), repeat=2)]
KEYS = {"operator": pl.String, "op1": pl.Int32, "op2": pl.Int32}
NAMED = {"subject": SUBJECT, "asked": ",".join(map(str, TENS))}  # attributes of stores
TOKEN = 20  # of the number 0
STANDING = {
    "subject": pl.String,
    "operator": pl.String,
    "criterion": pl.String,
    "layer": pl.Int16,
    "neuron": pl.Int32,
    "heuristic": pl.String,
    "chance_corrected": pl.Float32,
    "late": pl.Boolean,
}
PROMPTS = "from prompts where operator = $operator"


def tables() -> dict[str, pl.DataFrame]:
    """Return the tables that views read, by their path below data."""
    subject, numbers = pl.lit(SUBJECT).alias("subject"), pl.Series(TENS, dtype=pl.Int32)
    cells = pl.DataFrame(CELLS, KEYS | {"result": pl.Int32}, orient="row")
    tens = numbers.gather(cells["result"])
    answered = cells.with_columns(subject, tens=tens).filter(pl.col("tens") >= 0)
    rows = []
    for neuron, name in enumerate(HEURISTICS):
        rows.append((SUBJECT, "add", "fdr", 0, neuron, name, 0.9 - neuron / 10, True))
    standing = pl.DataFrame(rows, STANDING, orient="row")
    known = {"operator": "add", "heuristic": HEURISTICS[1], "kind": "range", "quantity": "result"}
    scores = standing.with_columns(side=pl.lit("top"), score=1.0, chance_score=0.5)
    tokens = pl.DataFrame({"number": range(10)}).with_columns(token=pl.col("number") + TOKEN)
    keys = ("subject", *KEYS)
    predictions = answered.select(*keys, predicted="tens", correct=True, answer_probability=0.9)
    prompts = answered.with_columns(answer_token=pl.col("tens") + TOKEN).drop("tens")
    return {
        "corpus/cells": cells,
        "heuristics/heuristics": pl.DataFrame(known | {"predicate": "result between 10 and 14"}),
        "heuristics/label_setting": pl.DataFrame({"threshold": [0.5]}),
        f"{SUBJECT}/store/numbers": tokens.select(subject, "number", "token"),
        f"{SUBJECT}/store/prompts": prompts,
        f"{SUBJECT}/store/predictions": predictions,
        f"{SUBJECT}/heuristics/heuristic_neurons": standing,
        f"{SUBJECT}/heuristics/scores": scores.drop("criterion", "late"),
    }


def made(root: Path) -> Path:
    """Write the project's data below a folder, and return their folder."""
    data, draw = root / "data", np.random.default_rng(0)
    for place, table in tables().items():
        put(data, place, table)
    (data / SUBJECT / "store/activations").mkdir()
    write_activations(data, draw.normal(size=(NEURONS, SIDE, SIDE)))
    axes = {"neuron": NEURONS, "number": 10}
    with writing(data / SUBJECT / "store/value_logits.h5") as file:
        writer = LayerWriter(file, [0], axes, "float32", (4, 10), NAMED)
        writer.write(0, 0, draw.normal(size=(NEURONS, 10)))
    return data


def put(data: Path, place: str, table: pl.DataFrame) -> None:
    """Write a table, at its path below data."""
    file = data / f"{place}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, file)


def write_activations(data: Path, values: np.ndarray) -> None:
    """Write the store of activations. values: (neuron, op1, op2)."""
    results = np.add.outer(np.arange(SIDE), np.arange(SIDE))
    columns = {"result": np.where(results >= 10, results, -1)}
    axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
    named = {"operator": "add", **NAMED}
    with writing(data / SUBJECT / "store/activations/add.h5") as file:
        writer = LayerWriter(file, [0], axes, "float16", (4, 5, SIDE), named, columns=columns)
        writer.write(0, 0, values)


class Anything:
    """A model with random logits, which stay the same whatever is ablated."""

    def __init__(self, project: Project):
        self.project = project
        self.logits = np.random.default_rng(1).normal(size=TOKEN + 10)

    def cell(self, operator: str, op1: int, op2: int) -> pl.DataFrame:
        query = f"{PROMPTS} and op1 = $op1 and op2 = $op2"
        return self.project.ask(query, operator=operator, op1=op1, op2=op2)

    def predict(self, *_: object) -> Prediction:
        return Prediction(self.logits, [np.ones(NEURONS)], 1.0)

    def random(self, like: Neurons, seed: int) -> Neurons:
        return [(layer, (neuron + seed) % NEURONS) for layer, neuron in like]

    def ablated(self, _: pl.DataFrame, sets: list[Neurons], *how: object) -> list[np.ndarray]:
        return [self.logits] * len(sets)

    def grid(self, operator: str, *how: object) -> Iterator[GridPart]:
        cells = self.project.ask(f"{PROMPTS} order by op1, op2", operator=operator)
        op1, op2, answers = cells["op1", "op2", "answer_token"].to_numpy().T
        predicted = np.full((3, len(cells)), TOKEN)
        yield GridPart(len(cells), len(cells), op1, op2, answers, predicted)


def explorer(data: Path) -> Explorer:
    """Return an explorer with a model of random logits."""
    made_by_hand = Explorer(Project(data))
    project = made_by_hand.project
    entry = Loaded(project.made_of(SUBJECT), Anything(project))
    made_by_hand.models._loaded[SUBJECT] = entry
    return made_by_hand
