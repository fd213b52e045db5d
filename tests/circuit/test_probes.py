"""Probes, end to end on a folder of made prompts: they find what is there, and only there."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest

from stages.circuit import probes
from stages.lib.core import progress
from tests.circuit.prompted import ROLES, result


@pytest.mark.parametrize("kind", ["llama", "gptj", "olmo2"])  # the differences that probes meet
def test_probes_find_the_operands_sum_only_where_both_are_known(project: Path):
    probes.main("tiny")
    first = (project / "circuit/probes.parquet").read_bytes()
    table = result(project, "probes")
    layers = table["layer"].max() + 1
    keys = table.select("operator", "layer", "position").rows()
    assert keys == list(product(("add", "divide"), range(layers), ROLES))
    add, divide = table.filter(operator="add"), table.filter(operator="divide")
    assert set(add["prompts"]) == {60}  # a fifth of a sample of 300
    assert (
        add.select("accuracy", "shuffled_accuracy", "majority_accuracy")
        .null_count()
        .sum_horizontal()
        .item()
        == 0
    )
    assert add["shuffled_accuracy"].max() < 0.2
    assert add.filter(pl.col("position").is_in(["op1", "operator"]))["accuracy"].max() < 0.2
    assert (
        divide.select("accuracy", "shuffled_accuracy", "majority_accuracy").null_count().row(0)
        == (len(divide),) * 3
    )
    assert set(divide["prompts"]) == {1}
    probes.main("tiny")
    assert (project / "circuit/probes.parquet").read_bytes() == first


@pytest.mark.parametrize("kind", ["llama"])
def test_probes_use_each_prompts_own_answer(project: Path):
    """Answers equal to op1 are read at op1 alone, in every layer."""
    prompts = pl.read_parquet(project / "store/prompts.parquet").with_columns(
        answer_token=(pl.col("op1") + 3).cast(pl.Int32)
    )
    prompts.write_parquet(project / "store/prompts.parquet")
    probes.main("tiny")
    table = result(project, "probes").filter(pl.col("operator") == "add")
    assert table.filter(pl.col("position") == "op1")["accuracy"].min() == 1
    assert (
        table.filter(pl.col("position") == "operator", pl.col("layer") == 0)["accuracy"].item()
        > 0.5
    )
    assert table["shuffled_accuracy"].max() < 0.3


@pytest.mark.parametrize("kind", ["llama"])
def test_a_subject_that_knows_nothing_is_one_sentence(project: Path):
    """Before any weights are loaded; what stands in the way of all that would be empty."""
    table = pl.read_parquet(project / "store/predictions.parquet").with_columns(correct=False)
    table.write_parquet(project / "store/predictions.parquet")
    with pytest.raises(
        probes.KnowsNothing,
        match=r"tiny answers no prompt of the grid correctly.* template .* `stored`",
    ) as error:
        probes.main("tiny")
    assert "\n" not in str(error.value)
    assert not (project / "circuit/probes.parquet").exists()


@pytest.mark.parametrize("kind", ["llama"])
def test_progress_counts_reading_and_probing(project: Path, monkeypatch: pytest.MonkeyPatch):
    """Division has too few prompts, so that only the 300 of addition count."""
    bars: list[progress.Log] = []

    def noted(*items, leave: bool = True, **options) -> progress.Log:
        bars.append(progress.Log(*items, **options))
        return bars[-1]

    monkeypatch.setattr(progress, "bar", noted)
    probes.main("tiny")
    layers = result(project, "probes")["layer"].max() + 1
    [bar] = [bar for bar in bars if bar.desc == "probes tiny"]
    assert bar.done == bar.total == 2 * 300 * layers
