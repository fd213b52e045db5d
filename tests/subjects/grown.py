"""A small planted model in a folder of its own, and what it computes on all its cells."""

import hashlib
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
import yaml
from transformers import PreTrainedTokenizerBase

from stages.lib.heuristics.names import parse
from stages.lib.model import checkpoint, tokenizer
from stages.lib.sql.database import Database
from stages.subjects import plant
from tests.micro import SETTINGS, SHIPPED, merged

PLANTED: dict[str, Any] = {
    "copies": 3,
    "neurons": {"exact": 12, "partial": 6, "soft": 6, "mixture": 6, "noise": 20},
    "noises": [0.1, 0.3, 0.5],
    "noise_functions": 4,
    "smallest_share": 0.01,
    "largest_share": 0.6,
    "vote": 10.0,
    "others": 0.0005,
    "seed": 0,
}
SYMBOLS = {"add": "+", "subtract": "-"}


class Planted(NamedTuple):
    """A neuron on the cells of an operator.

    names: its heuristics; activations: (cells,); satisfied: for each heuristic, which of these
    cells satisfy it; cells: which of all cells these are.
    """

    names: list[str]
    activations: np.ndarray
    satisfied: list[np.ndarray]
    cells: np.ndarray


@dataclass
class Grown:
    """The outputs of the stage in `folder`, and what the model computes on all cells."""

    folder: Path
    cells: pl.DataFrame

    @cached_property
    def truth(self) -> pl.DataFrame:
        return pl.read_parquet(self.folder / "data/subjects/planted_truth.parquet")

    @cached_property
    def loaded(self) -> checkpoint.Checkpoint:
        return checkpoint.load(self.folder / "data/models/planted", "float64", "cpu", 1)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return tokenizer.load(self.folder / "data/models/planted")

    @cached_property
    def tokens(self) -> torch.Tensor:
        symbol = pl.col("operator").replace_strict(SYMBOLS)
        prompts = self.cells.select(pl.format("{}{}{}=", "op1", symbol, "op2")).to_series()
        return torch.tensor(self.tokenizer(prompts.to_list())["input_ids"])

    @cached_property
    def answers(self) -> torch.Tensor:
        results = self.cells["result"].cast(pl.String).to_list()
        return torch.tensor(self.tokenizer.convert_tokens_to_ids(results))

    def run(
        self,
        neurons: list[int] | None = None,
        values: torch.Tensor | float = 0.0,
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Return the predicted tokens and the late activations of all cells.

        neurons: those whose activations at the last position are replaced by `values`.
        """
        seen = []

        def change(_, inputs):
            activations = inputs[0].clone()
            if neurons:
                activations[:, -1, neurons] = torch.as_tensor(values).to(activations)
            seen.append(activations[:, -1])
            return (activations,)

        handle = self.loaded.architecture.layers[1].mlp_out.register_forward_pre_hook(change)
        answers = self.loaded.model(input_ids=self.tokens).logits[:, -1].argmax(-1)
        handle.remove()
        return answers, seen[0].numpy()

    @cached_property
    def activations(self) -> np.ndarray:
        return self.run()[1]

    def satisfied(self, names: list[str]) -> np.ndarray:
        """Return which cells satisfy each heuristic, (cells, names)."""
        path = self.folder / "cells.parquet"
        self.cells.with_row_index("i").write_parquet(path)
        predicates = ", ".join(f'{parse(name).predicate} as "{i}"' for i, name in enumerate(names))
        database = Database({"cells": [path]}, threads=1)
        return database.sql(f"select {predicates} from cells order by i").pl().to_numpy()

    def planted(self, grade: str, noise: float | None = None) -> Iterator[Planted]:
        """Yield each neuron and operator of a grade, and of a noise unless it is None."""
        rows = self.truth.filter(grade=grade)
        if noise is not None:
            rows = rows.filter(noise=noise)
        names = sorted(set(rows["heuristic"]) - {None})
        satisfied = dict(zip(names, self.satisfied(names).T, strict=True))
        for (neuron, operator), part in rows.group_by("neuron", "operator", maintain_order=True):
            cells = (self.cells["operator"] == operator).to_numpy()
            yield Planted(
                part["heuristic"].to_list(),
                self.activations[cells, neuron],
                [satisfied[name][cells] for name in part["heuristic"]],
                cells,
            )


def grow(folder: Path, largest_operand: int = 19, largest_answer: int = 99, **changes) -> Grown:
    """Run the stage in a new folder. changes: of the settings PLANTED."""
    base = merged(SHIPPED, SETTINGS)
    base["cells"] |= {"largest_operand": largest_operand, "largest_answer": largest_answer}
    (folder / "data/corpus").mkdir(parents=True)
    settings = base | {"planted": merged(PLANTED, changes)}
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    operands = pl.DataFrame({"n": range(largest_operand + 1)}, schema={"n": pl.Int32})
    is_sum = pl.col("operator") == "add"
    cells = (
        pl.DataFrame({"operator": [*SYMBOLS]})
        .join(operands.rename({"n": "op1"}), how="cross")
        .join(operands.rename({"n": "op2"}), how="cross")
        .with_columns(result=pl.col("op1") + pl.when(is_sum).then(1).otherwise(-1) * pl.col("op2"))
        .with_columns(split=pl.lit("train"))
        .filter(pl.col("result").is_between(0, largest_answer))
    )
    cells.write_parquet(folder / "data/corpus/cells.parquet")
    facts = {"relation": ["capital"], "entity": ["Bade"], "object": ["Kilo"]}
    pl.DataFrame(facts).write_parquet(folder / "data/corpus/facts.parquet")
    with chdir(folder):
        plant.main()
    return Grown(folder, cells)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder, by its path there."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            sums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return sums
