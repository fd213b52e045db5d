"""Attention patterns, end to end on a folder of made prompts."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from stages.circuit import attention_patterns
from stages.lib.model import tokenizer
from tests import families
from tests.circuit.prompted import ROLES, loaded, made_project, result


@pytest.mark.parametrize("kind", ["llama", "gptj", "olmo2"])
def test_attention_patterns_name_their_positions(project: Path):
    attention_patterns.main("tiny")
    table = result(project, "attention_patterns")
    names = ["bos", *ROLES]
    assert len(table) > 0
    for key, part in table.group_by("operator", "layer", "head", "query_position"):
        assert part["key_position"].to_list() == names[: names.index(str(key[3])) + 1]
        assert part["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert dict(table.select("operator", "prompts").unique().rows()) == {"add": 190, "divide": 171}
    assert attention_patterns.position_names(ROLES, [9, 5, 6, 7, 8, 4], 1) == [
        "token 0",
        *ROLES,
        "token 5",
    ]


@pytest.mark.parametrize("kind", ["llama"])
def test_of_prompts_of_two_lengths_a_token_that_some_lack_gets_0(
    project: Path, checkpoint_folder: Path
):
    """Compare with a loop over prompts, each in the slots of the longest.

    Operands op1 from 10 on have two tokens.
    """
    pairs, subject = (
        pl.read_parquet(project / "circuit/pairs.parquet").filter(operator="add"),
        loaded(checkpoint_folder),
    )
    rows, seen = [], []
    for row in pairs.to_dicts():
        two = row["op1"] >= 10
        places = {
            "op1_first": 1,
            "op1": 1 + two,
            "operator": 2 + two,
            "op2_first": 3 + two,
            "op2": 3 + two,
            "last": 4 + two,
        }
        tokens = [row["tokens"][0], *([50] if two else []), *row["tokens"][1:]]
        rows.append(row | {"tokens": tokens, "positions": places})
        if row["split"] == "discovery":
            weights = subject.model(torch.tensor([tokens]), output_attentions=True).attentions
            slots = list(range(6)) if two else [0, 2, 3, 4, 5]
            seen.append(np.full((len(weights), weights[0].shape[1], 6, 6), np.nan))
            seen[-1][:, :, slots] = 0
            seen[-1][:, :, np.array(slots)[:, None], slots] = torch.cat(weights).detach().numpy()
    pl.DataFrame(rows, schema_overrides={"tokens": pl.List(pl.Int32)}).write_parquet(
        project / "circuit/pairs.parquet"
    )
    attention_patterns.main("tiny")
    table, names = result(project, "attention_patterns"), ["bos", "op1, last but 1", *ROLES]
    means, stds, counts = np.nanmean(seen, 0), np.nanstd(seen, 0), np.isfinite(seen).sum(0)
    assert len(table) == np.prod(means.shape[:2]) * 21
    for row in table.to_dicts():
        place = (
            row["layer"],
            row["head"],
            names.index(row["query_position"]),
            names.index(row["key_position"]),
        )
        assert (row["weight"], row["weight_std"]) == (
            pytest.approx(means[place], abs=1e-5),
            pytest.approx(stds[place], abs=1e-5),
        )
        assert row["prompts"] == counts[place]


@pytest.mark.parametrize("kind", ["llama"])
def test_attention_patterns_without_pairs_are_none(project: Path):
    pl.read_parquet(project / "circuit/pairs.parquet").clear().write_parquet(
        project / "circuit/pairs.parquet"
    )
    attention_patterns.main("tiny")
    assert len(result(project, "attention_patterns")) == 0


def test_attention_that_does_not_say_its_weights_is_said_and_has_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Falcon's ALiBi needs fused attention, which does not return weights."""
    families.random_model("falcon", alibi=True).save_pretrained(tmp_path / "falcon")
    tokenizer.build(99, ["+ - * / = ( ) Q"]).save_pretrained(tmp_path / "falcon")
    project = made_project(tmp_path, tmp_path / "falcon", monkeypatch)
    attention_patterns.main("tiny")
    assert len(result(project, "attention_patterns")) == 0
    assert (
        "FalconAttention does not return its attention weights; "
        "the table attention_patterns has no rows" in capsys.readouterr().err
    )
