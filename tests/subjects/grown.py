"""The planted subject, grown small in a folder of its own, and what it does on all its cells."""

import hashlib
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
    "copies": 3, "neurons": {"exact": 12, "partial": 6, "soft": 6, "mixture": 6, "noise": 20}, "noises": [0.1, 0.3, 0.5],
    "noise_functions": 4, "smallest_share": 0.01, "largest_share": 0.6, "vote": 10.0, "others": 0.0005, "seed": 0,
}  # fmt: skip
SYMBOLS = {"add": "+", "subtract": "-"}


@dataclass
class Grown:
    """What the stage wrote into `folder`, and what the model does on all cells."""

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
        prompts = self.cells.select(
            pl.format("{}{}{}=", "op1", pl.col("operator").replace_strict(SYMBOLS), "op2")
        ).to_series()
        return torch.tensor(self.tokenizer(prompts.to_list())["input_ids"])

    @cached_property
    def answers(self) -> torch.Tensor:
        return torch.tensor(
            self.tokenizer.convert_tokens_to_ids(self.cells["result"].cast(pl.String).to_list())
        )

    def run(
        self, neurons: list[int] | None = None, values: torch.Tensor | float = 0.0
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Answers and late activations of all cells, with these neurons' activations at the last position replaced."""
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
        """Which cells (cells, names) satisfy heuristics."""
        path = self.folder / "asked.parquet"
        self.cells.with_row_index("i").write_parquet(path)
        predicates = ", ".join(f'{parse(name).predicate} as "{i}"' for i, name in enumerate(names))
        return (
            Database({"asked": [path]}, threads=1)
            .sql(f"select i, {predicates} from asked order by i")
            .pl()
            .drop("i")
            .to_numpy()
        )

    def planted(
        self, grade: str, noise: float | None = None
    ) -> Iterator[tuple[list[str], np.ndarray, list[np.ndarray], np.ndarray]]:
        """Of every neuron and operator of a grade: heuristics, activations, per heuristic which of those cells satisfy it, and which cells."""
        rows = (
            self.truth.filter(grade=grade)
            if noise is None
            else self.truth.filter(grade=grade, noise=noise)
        )
        names = sorted(set(rows["heuristic"]) - {None})
        where = dict(zip(names, self.satisfied(names).T, strict=True))
        for (neuron, operator), some in rows.group_by("neuron", "operator", maintain_order=True):
            cells = (self.cells["operator"] == operator).to_numpy()
            yield (
                some["heuristic"].to_list(),
                self.activations[cells, neuron],
                [where[name][cells] for name in some["heuristic"]],
                cells,
            )


def grow(folder: Path, largest_operand: int = 19, largest_answer: int = 99, **changes) -> Grown:
    """Runs the stage in a folder of its own."""
    base = merged(SHIPPED, SETTINGS)
    base["cells"] |= {"largest_operand": largest_operand, "largest_answer": largest_answer}
    (folder / "data/corpus").mkdir(parents=True)
    (folder / "params.yaml").write_text(
        yaml.safe_dump(base | {"planted": merged(PLANTED, changes)})
    )
    operands = range(largest_operand + 1)
    cells = pl.DataFrame(
        [(o, a, b, a + b if o == "add" else a - b, "train") for o in SYMBOLS for a in operands for b in operands],
        schema={"operator": pl.String, "op1": pl.Int32, "op2": pl.Int32, "result": pl.Int32, "split": pl.String}, orient="row",
    ).filter(pl.col("result").is_between(0, largest_answer))  # fmt: skip
    cells.write_parquet(folder / "data/corpus/cells.parquet")
    facts = {"relation": ["capital"], "entity": ["Bade"], "object": ["Kilo"]}
    pl.DataFrame(facts).write_parquet(folder / "data/corpus/facts.parquet")
    with chdir(folder):
        plant.main()
    return Grown(folder, cells)


def digests(folder: Path) -> dict[str, str]:
    data = folder / "data"
    return {
        str(p.relative_to(data)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(data.rglob("*"))
        if p.is_file()
    }
