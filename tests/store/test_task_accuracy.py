"""Accuracy outside the grid is about answers that the subject can give in one token."""

import polars as pl

from tests.made import ask


def test_answers_of_several_tokens_are_no_wrong_ones():
    tasks = pl.DataFrame({
        "task": ["factual"] * 3 + ["retrieval"] * 2, "prompt_number": [0, 1, 2, 0, 1], "operator": [None] * 5, "split": ["train"] * 5,
    }, schema_overrides={"prompt_number": pl.Int32, "operator": pl.String})  # fmt: skip
    said = tasks.select(
        pl.lit("s").alias("subject"), "task", "prompt_number",
        correct=pl.Series([True, False, False, False, False]), answer_logit=pl.Series([1.0, 0.5, None, None, None], dtype=pl.Float32),
    )  # fmt: skip
    real = tasks.with_columns(pl.col("prompt_number") + 9, split=pl.lit("all"))  # never asked
    given = {"tasks": tasks, "real_tasks": real, "task_predictions": said}
    table = ask("task_accuracy", given)
    assert table.rows() == [("s", "factual", "all", "train", 0.5, 2), ("s", "retrieval", "all", "train", None, 0)]
