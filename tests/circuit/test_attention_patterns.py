"""Attention patterns, end to end on a folder of made prompts."""

from pathlib import Path

import polars as pl
import pytest

from stages.circuit import attention_patterns
from stages.lib.model import tokenizer
from tests import families
from tests.circuit.prompted import ROLES, made_project, result


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return made_project(tmp_path, checkpoint_folder, monkeypatch)


def test_attention_patterns_name_their_positions(project: Path):
    attention_patterns.main("tiny")
    table = result(project, "attention_patterns")
    names = ["bos", *ROLES]
    for key, part in table.group_by("operator", "layer", "head", "query_position"):
        assert part["key_position"].to_list() == names[: names.index(str(key[3])) + 1]
        assert part["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert dict(table.select("operator", "prompts").unique().rows()) == {"add": 190, "divide": 171}
    assert attention_patterns.position_names(ROLES, [9, 5, 6, 7, 8, 4], 1) == ["token 0", *ROLES, "token 5"]


@pytest.mark.parametrize("kind", ["llama"])
def test_attention_patterns_without_pairs_are_none(project: Path):
    pl.read_parquet(project / "circuit/pairs.parquet").clear().write_parquet(project / "circuit/pairs.parquet")
    attention_patterns.main("tiny")
    assert len(result(project, "attention_patterns")) == 0


def test_attention_that_does_not_say_its_weights_is_said_and_has_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """ALiBi of Falcon: plain attention adds it twice, so that fused attention is used, which has no weights to show."""
    families.random_model("falcon", alibi=True).save_pretrained(tmp_path / "falcon")
    tokenizer.build(99, ["+ - * / = ( ) Q"]).save_pretrained(tmp_path / "falcon")
    project = made_project(tmp_path, tmp_path / "falcon", monkeypatch)
    attention_patterns.main("tiny")
    assert len(result(project, "attention_patterns")) == 0
    assert "FalconAttention does not return its attention weights; the table attention_patterns has no rows" in capsys.readouterr().err
