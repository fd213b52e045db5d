"""Which prompts a heuristic is about: the real stage against the predicates themselves."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.bag import prompt_associations
from tests.bag.knocked import (
    ENDS,
    EVEN,
    LOW,
    MEANS,
    OWN,
    SAME,
    SET,
    catalogue,
    documented,
    listed,
    prompts,
    standing,
)
from tests.made import OPERATORS
from tests.micro import alone


def associated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pairs: pl.DataFrame, members: pl.DataFrame
) -> pl.DataFrame:
    """Return what the real stage writes."""
    for name, table in {
        "heuristics/heuristics": catalogue(OPERATORS),
        "s/circuit/pairs": pairs,
        "s/heuristics/scores": members,
    }.items():
        (folder / f"data/{name}").parent.mkdir(parents=True)
        table.write_parquet(folder / f"data/{name}.parquet")
    (folder / "params.yaml").write_text(yaml.safe_dump(alone("s")))
    monkeypatch.chdir(folder)
    prompt_associations.main("s")
    return documented(folder / "data/s/bag/prompt_associations.parquet")


def test_a_prompt_is_associated_with_what_its_cell_satisfies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heuristics, pairs = {"add": [EVEN, LOW, ENDS, SET, OWN], "subtract": [SAME, SET]}, prompts()
    members, expected = [], []
    for operator, names in heuristics.items():
        members += product([operator], [1], (1, 2), names)
        for prompt, name in product(listed(pairs, operator=operator), names):
            if MEANS[name](prompt):
                expected.append(("s", operator, prompt.pair, name))
    table = associated(tmp_path, monkeypatch, pairs, standing(members))
    assert table.rows() == sorted(expected)
    assert table.select("operator", "heuristic").n_unique() == 7


def test_without_heuristics_no_prompt_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert associated(tmp_path, monkeypatch, prompts(), standing([])).is_empty()
