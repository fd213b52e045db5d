"""The explorer opens on a question that the model at hand was asked, and answers right if it can."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest

from stages.explorer.explorer import Explorer
from stages.explorer.project import Project
from stages.lib.core.tables import write_table
from tests.explorer.made import KEYS
from tests.explorer.said import field, says


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These need no micro project."""


def opened(folder: Path, right: pl.Expr, **largest: int) -> Project:
    """A project of models that are asked operands up to their largest; right: what each answers."""
    operands = product(range(300), range(0, 300, 2))
    cells = pl.DataFrame([*operands], ["op1", "op2"], orient="row").join(
        pl.DataFrame({"operator": ["add", "subtract"]}),
        how="cross",
    )
    total = pl.when(operator="add").then(pl.col("op1") + pl.col("op2")).otherwise(pl.col("op1") - pl.col("op2"))
    cells = cells.select(*KEYS, result=total).cast(KEYS | {"result": pl.Int32}).filter(pl.col("result") >= 0)
    (folder / "corpus").mkdir()
    write_table(cells, folder / "corpus/cells.parquet")
    for name, operand in largest.items():
        asked = cells.filter(pl.max_horizontal("op1", "op2") <= operand)
        answers = asked.select(
            pl.lit(name).alias("subject"),
            *KEYS,
            predicted="result",
            correct=right,
            answer_probability=0.5,
        )
        write_table(answers, folder / name / "store/predictions.parquet")
    return Project(folder)


def test_every_model_opens_on_a_question_of_its_own(tmp_path: Path):
    project = opened(tmp_path, pl.lit(True), large=299, small=99)
    assert project.example("large") == "226-68"
    assert project.example("small") == "74-24"
    explorer = Explorer(project)
    for view, subject in product(("prompt", "silence"), ("large", "small")):
        assert field(explorer, view, "prompt", subject=subject).value == project.example(subject)
        assert "is not a cell of" not in says(explorer, view, subject=subject)
    assert "226-68 is not a cell of small" in says(
        explorer,
        "prompt",
        subject="small",
        prompt="226-68",
    )


def test_a_question_that_the_model_answers_right_is_preferred(tmp_path: Path):
    odd_sums = (pl.col("operator") == "add") & (pl.col("op1") % 2 == 1)
    assert opened(tmp_path, odd_sums, small=99).example("small") == "73+24"


def test_a_model_that_answers_nothing_right_opens_as_well(tmp_path: Path):
    assert opened(tmp_path, pl.lit(False), small=99).example("small") == "74-24"
