"""The explorer opens on a prompt of the model, answered correctly if the model answers any."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest

from stages.explorer.explorer import Explorer
from stages.explorer.project import Project
from tests.explorer.made import KEYS, put
from tests.explorer.said import field, says

ADDED, TAKEN = pl.col("op1") + pl.col("op2"), pl.col("op1") - pl.col("op2")


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These tests need no micro project."""


def opened(folder: Path, right: pl.Expr, **largest: int) -> Project:
    """Return a project of models with operands up to their largest; right: where each is right."""
    operands = pl.DataFrame({"op1": range(300)}).join(
        pl.DataFrame({"op2": range(0, 300, 2)}),
        how="cross",
    )
    total = operands.select(pl.lit("add").alias("operator"), "op1", "op2", result=ADDED)
    difference = operands.select(pl.lit("subtract").alias("operator"), "op1", "op2", result=TAKEN)
    cells = pl.concat([total, difference]).cast(KEYS | {"result": pl.Int32})
    cells = cells.filter(pl.col("result") >= 0)
    put(folder, "corpus/cells", cells)
    for name, operand in largest.items():
        prompts = cells.filter(pl.max_horizontal("op1", "op2") <= operand)
        answers = {"predicted": "result", "correct": right, "answer_probability": 0.5}
        subject = pl.lit(name).alias("subject")
        put(folder, f"{name}/store/predictions", prompts.select(subject, *KEYS, **answers))
    return Project(folder)


def test_every_model_opens_on_a_prompt_of_its_own(tmp_path: Path):
    project = opened(tmp_path, pl.lit(True), large=299, small=99)
    assert project.example("large") == "226-68"
    assert project.example("small") == "74-24"
    explorer = Explorer(project)
    for view, subject in product(("prompt", "silence"), ("large", "small")):
        assert field(explorer, view, "prompt", subject=subject).value == project.example(subject)
        assert "is not a cell of" not in says(explorer, view, subject=subject)
    other = says(explorer, "prompt", subject="small", prompt="226-68")
    assert "226-68 is not a cell of small" in other


def test_a_prompt_that_the_model_answers_correctly_is_preferred(tmp_path: Path):
    odd_sums = (pl.col("operator") == "add") & (pl.col("op1") % 2 == 1)
    assert opened(tmp_path, odd_sums, small=99).example("small") == "73+24"


def test_a_model_that_answers_nothing_correctly_opens_as_well(tmp_path: Path):
    assert opened(tmp_path, pl.lit(False), small=99).example("small") == "74-24"
