"""Which prompts a heuristic is about: the real stage against the predicates themselves."""

from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.bag import prompt_associations
from stages.lib.dictionary import tables
from stages.lib.heuristics.names import parse
from stages.lib.sql.database import Database
from tests.bag.knocked import ENDS, EVEN, LOW, MEANS, OWN, SAME, SET, listed, prompts, standing
from tests.made import OPERATORS
from tests.micro import ROOT, alone


def associated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pairs: pl.DataFrame, members: pl.DataFrame
) -> pl.DataFrame:
    """Return what the real stage writes.

    The catalogue lacks SET, which only its name describes, and has OWN, whose name does not.

    """
    known = [(h.name, h.kind, h.quantity, h.predicate) for h in map(parse, (SAME, EVEN, LOW, ENDS))]
    rows = [
        (operator, *heuristic)
        for operator in OPERATORS
        for heuristic in [*known, (OWN, "custom", "custom", "op1 + op2 > 12")]
    ]
    catalogue = pl.DataFrame(
        rows, schema=["operator", "heuristic", "kind", "quantity", "predicate"], orient="row"
    )
    for name, table in {
        "heuristics/heuristics": catalogue,
        "s/circuit/pairs": pairs,
        "s/heuristics/scores": members,
    }.items():
        (folder / f"data/{name}").parent.mkdir(parents=True)
        table.write_parquet(folder / f"data/{name}.parquet")
    (folder / "params.yaml").write_text(yaml.safe_dump(alone("s")))
    monkeypatch.chdir(folder)
    prompt_associations.main("s")
    documented = {
        name: kind
        for name, (kind, _) in tables(ROOT / "stages")["prompt_associations"].columns.items()
    }
    database = Database({"written": [folder / "data/s/bag/prompt_associations.parquet"]})
    assert database.columns("written") == documented
    return database.sql("from written").pl()


def test_a_prompt_is_associated_with_what_its_cell_satisfies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heuristics, pairs = {"add": [EVEN, LOW, ENDS, SET, OWN], "subtract": [SAME, SET]}, prompts()
    table = associated(
        tmp_path,
        monkeypatch,
        pairs,
        standing([(o, 1, n, h) for o, names in heuristics.items() for n in (1, 2) for h in names]),
    )
    expected = []
    for prompt in listed(pairs):
        names = [name for name in heuristics[prompt.operator] if MEANS[name](prompt)]
        expected += [("s", prompt.operator, prompt.pair, name) for name in names]
    assert table.rows() == sorted(expected)
    assert {(o, h) for _, o, _, h in expected} == {
        (o, h) for o, names in heuristics.items() for h in names
    }


def test_without_heuristics_no_prompt_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert associated(tmp_path, monkeypatch, prompts(), standing([])).is_empty()
