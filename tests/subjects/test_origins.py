"""A model is trained here if its weights began in a folder that this project trains or plants."""

from pathlib import Path

import polars as pl
import pytest
import yaml

from stages.lib.dictionary import tables
from stages.lib.origins import ORIGINS, trained_here
from stages.lib.sql.database import Database
from stages.subjects import origins
from tests.micro import ROOT, changed

TRAINED = {"abacus", "planted"}
FINETUNED = {
    "again": "data/models/tuned",
    "tuned": "data/models/abacus/step-00010",
    "qwen-tuned": "data/models/qwen",
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("data/models/abacus/step-00010", True),
        ("./data/models/../models/planted", True),
        ("data/models/tuned", True),
        ("data/models/again", True),
        ("data/models/qwen", False),
        ("data/models/qwen-tuned", False),
        ("data/models", False),
        ("elsewhere/abacus", False),
        ("/elsewhere/data/models/abacus", False),
        ("data/models/abacus-like", False),
    ],
)
def test_weights_begin_where_they_were_first_trained(source: str, expected: bool):
    assert origins.began_here(source, TRAINED, FINETUNED) == expected
    if not source.startswith("/"):
        assert origins.began_here(str(Path(source).absolute()), TRAINED, FINETUNED) == expected


def test_our_models_are_trained_here_and_a_users_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    entry = changed({})["subjects"]["abacus"]
    whole = changed({"stored": {"mine": entry | {"source": "models/mine"}}})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(whole))
    monkeypatch.chdir(tmp_path)
    origins.main()
    written = sorted(ORIGINS.iterdir())
    table = pl.concat(pl.read_parquet(path) for path in written)
    assert dict(table.filter(~pl.col("trained_here")).select("subject", "source").rows()) == {
        "mine": "models/mine"
    }
    assert {"abacus", "planted", "abacus-three-operands"} <= set(table["subject"])
    assert trained_here("abacus")
    assert not trained_here("mine")
    documented = tables(ROOT / "stages")["origins"].columns
    kinds = {name: kind for name, (kind, _) in documented.items()}
    assert Database({"origins": written}).columns("origins") == kinds
