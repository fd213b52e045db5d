"""Make a project with made prompts and a random model, for stages that read a model."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from stages.lib.dictionary import tables
from stages.lib.model import checkpoint
from stages.lib.sql.database import Database
from tests.micro import ROOT, SHIPPED, alone

SECTIONS = {
    "probes": {
        "prompts": 300,
        "fewest_prompts": 20,
        "test_percent": 20,
        "shrinkage": 0.001,
        "seed": 0,
    },
    "late_layers": {"readable": 0.8, "least_plateau": 0.5},
}
ROLES = {"op1": 1, "operator": 2, "op2": 3, "last": 4}


def loaded(folder: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(folder, "float32", "cpu", 1)


def tokens(prompts: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(3, 100, (prompts, 5))


def made_project(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project whose model is in `source`, and return its data folder.

    All additions of 0 to 19 are answered correctly, and five divisions.
    """
    subject = alone("tiny", source=str(source), operators=["add", "divide"])
    params = SHIPPED | SECTIONS | subject | {"passes": {"prompts_per_pass": 150}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    rows = []
    for operator, sign, calculate in (
        ("add", 120, lambda a, b: a + b),
        ("divide", 122, lambda a, b: a // b if a and b else None),
    ):
        for a, b in np.ndindex(20, 20):
            answer = calculate(a, b)
            rows.append(
                (
                    "tiny",
                    operator,
                    a,
                    b,
                    answer,
                    [1, a + 3, sign, b + 3, 121],
                    None if answer is None else answer + 3,
                    1,
                    2,
                    3,
                    4,
                )
            )
    names = [
        "subject",
        "operator",
        "op1",
        "op2",
        "result",
        "tokens",
        "answer_token",
        "op1_position",
        "operator_position",
        "op2_position",
        "last_position",
    ]
    numbers = {**dict.fromkeys(names[2:4], pl.Int32), **dict.fromkeys(names[7:], pl.Int16)}
    prompts = pl.DataFrame(
        rows, schema=names, orient="row", schema_overrides={**numbers, "tokens": pl.List(pl.Int32)}
    )
    data = folder / "data/tiny"
    for chapter in ("store", "circuit"):
        (data / chapter).mkdir(parents=True)
    prompts.write_parquet(data / "store/prompts.parquet")
    answered = prompts.filter(pl.col("answer_token").is_not_null())
    right = (pl.col("operator") == "add") | ((pl.col("op1") == 5) & (pl.col("op2") < 6))
    answered.select(*names[:4], right.alias("correct")).write_parquet(
        data / "store/predictions.parquet"
    )
    pairs = answered.filter(pl.col("op1") != 0).with_columns(
        pair=pl.int_range(pl.len(), dtype=pl.Int32),
        split=pl.when(pl.col("op2") < 10).then(pl.lit("discovery")).otherwise(pl.lit("evaluation")),
        positions=pl.struct(**{role: pl.col(f"{role}_position") for role in ROLES}),
    )
    pairs.write_parquet(data / "circuit/pairs.parquet")
    monkeypatch.chdir(folder)
    return data


def result(folder: Path, table: str) -> pl.DataFrame:
    """A written table, held against its description."""
    described = tables(ROOT / "stages")[table]
    path = folder / described.path.parent.name / f"{table}.parquet"
    assert Database({table: [path]}).columns(table) == {
        name: kind for name, (kind, _) in described.columns.items()
    }
    return pl.read_parquet(path)
