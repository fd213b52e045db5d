"""Probes, attention patterns and single tokens: what is read off a model, against planted truths and transformers' own outputs."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from stages.circuit import attention_patterns, probes, streams
from stages.lib.dictionary import tables
from stages.lib.model import architecture, checkpoint
from stages.lib.sql.database import Database
from stages.neurons import token_activations
from tests.micro import ROOT, SHIPPED, alone

SECTIONS = {
    "probes": {"prompts": 300, "fewest_prompts": 20, "test_percent": 20, "shrinkage": 0.001, "layers_at_once": 2, "seed": 0},
    "late_layers": {"readable": 0.5},
}
ROLES = {"op1": 1, "operator": 2, "op2": 3, "last": 4}


def loaded(folder: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(folder, "float32", "cpu", 1)


def tokens(prompts: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(3, 100, (prompts, 5))


# what hooks see


def test_streams_are_transformers_hidden_states(checkpoint_folder: Path):
    subject, prompts = loaded(checkpoint_folder), tokens()
    found = subject.architecture
    into = {layer: np.full((2, 7, found.width), np.nan, np.float32) for layer in range(len(found.layers))}
    assert list(streams.streams(subject, prompts, [1, 4], 3, into)) == [3, 3, 1]
    states = subject.model(torch.from_numpy(prompts), output_hidden_states=True).hidden_states
    for layer, stream in into.items():
        seen = torch.from_numpy(stream)
        if layer == len(found.layers) - 1:  # transformers shows the last one behind the final normalisation
            seen = found.final_norm(seen)
        torch.testing.assert_close(seen, states[layer + 1][:, [1, 4]].transpose(0, 1), rtol=1e-4, atol=1e-4)


def test_attention_is_transformers_attentions(checkpoint_folder: Path):
    subject, prompts = loaded(checkpoint_folder), tokens()
    mean, std = streams.attention(subject, prompts, 3)
    own = torch.stack(subject.model(torch.from_numpy(prompts), output_attentions=True).attentions).double().numpy()
    np.testing.assert_allclose(mean, own.mean(1), atol=1e-6)
    np.testing.assert_allclose(std, own.std(1), atol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama"])
def test_an_attention_without_weights_is_named(checkpoint_folder: Path):
    subject = loaded(checkpoint_folder)
    handle = subject.architecture.layers[1].attention.register_forward_hook(lambda _, __, output: (output[0], None))
    with pytest.raises(architecture.ArchitectureError, match=r"layer 1: .* does not return its attention weights"):
        streams.attention(subject, tokens(), 3)
    handle.remove()


def test_neurons_of_a_cut_prompt_are_those_of_the_whole(checkpoint_folder: Path):
    subject, prompts = loaded(checkpoint_folder), tokens()
    seen: list[torch.Tensor] = []
    with architecture.patched(subject.architecture.layers[0].mlp_out, lambda x: seen.append(x[:, 1].clone())):
        subject.model(torch.from_numpy(prompts))
    np.testing.assert_allclose(streams.neurons(subject, prompts[:, :2], 0, 3), seen[0].numpy(), rtol=1e-4, atol=1e-5)


# the stages, end to end on a folder of made prompts


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose subject is a random model: additions of 0..19, all answered correctly, and five divisions."""
    subject = alone("tiny", source=str(checkpoint_folder), operators=["add", "divide"])
    params = SHIPPED | SECTIONS | subject | {"passes": {"prompts_per_pass": 150}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    rows = []
    for operator, sign, calculate in (("add", 120, lambda a, b: a + b), ("divide", 122, lambda a, b: a // b if a and b else None)):
        for a, b in np.ndindex(20, 20):
            answer = calculate(a, b)
            rows.append(("tiny", operator, a, b, answer, [1, a + 3, sign, b + 3, 121], None if answer is None else answer + 3, 1, 2, 3, 4))
    names = [
        "subject", "operator", "op1", "op2", "result", "tokens", "answer_token",
        "op1_position", "operator_position", "op2_position", "last_position",
    ]  # fmt: skip
    small = dict.fromkeys([*names[2:4], *names[7:]], pl.Int16)
    prompts = pl.DataFrame(rows, schema=names, orient="row", schema_overrides={**small, "tokens": pl.List(pl.Int32)})
    data = tmp_path / "data/tiny"
    data.mkdir(parents=True)
    prompts.write_parquet(data / "prompts.parquet")
    answered = prompts.filter(pl.col("answer_token").is_not_null())
    right = (pl.col("operator") == "add") | ((pl.col("op1") == 5) & (pl.col("op2") < 6))
    answered.select(*names[:4], right.alias("correct")).write_parquet(data / "predictions.parquet")
    pairs = answered.filter(pl.col("op1") != 0).with_columns(
        pair=pl.int_range(pl.len(), dtype=pl.Int32),
        split=pl.when(pl.col("op2") < 10).then(pl.lit("discovery")).otherwise(pl.lit("evaluation")),
        positions=pl.struct(**{role: pl.col(f"{role}_position") for role in ROLES}),
    )
    pairs.write_parquet(data / "pairs.parquet")
    monkeypatch.chdir(tmp_path)
    return data


def result(folder: Path, table: str) -> pl.DataFrame:
    """A written table, held against its description."""
    columns = tables(ROOT / "stages")[table].columns
    assert Database({table: [folder / f"{table}.parquet"]}).columns(table) == {name: kind for name, (kind, _) in columns.items()}
    return pl.read_parquet(folder / f"{table}.parquet")


def test_probes_find_the_operands_sum_only_where_both_are_known(project: Path):
    probes.main("tiny")
    first = (project / "probes.parquet").read_bytes()
    table = result(project, "probes")
    layers = table["layer"].max() + 1
    assert table.select("operator", "layer", "position").rows() == [
        (operator, layer, role) for operator in ("add", "divide") for layer in range(layers) for role in ROLES
    ]
    add, divide = (table.filter(pl.col("operator") == o) for o in ("add", "divide"))
    assert set(add["prompts"]) == {60}  # a fifth of a sample of 300
    assert add.select("accuracy", "shuffled_accuracy", "majority_accuracy").null_count().sum_horizontal().item() == 0
    assert add["shuffled_accuracy"].max() < 0.2
    assert add.filter(pl.col("position").is_in(["op1", "operator"]))["accuracy"].max() < 0.2
    assert divide.select("accuracy", "shuffled_accuracy", "majority_accuracy").null_count().row(0) == (len(divide),) * 3
    assert set(divide["prompts"]) == {1}
    probes.main("tiny")
    assert (project / "probes.parquet").read_bytes() == first


@pytest.mark.parametrize("kind", ["llama"])
def test_probes_use_each_prompts_own_answer(project: Path):
    """Answers that name op1: read without fault where op1 stands, and at no other layer or position mixed up with other prompts."""
    prompts = pl.read_parquet(project / "prompts.parquet").with_columns(answer_token=(pl.col("op1") + 3).cast(pl.Int32))
    prompts.write_parquet(project / "prompts.parquet")
    probes.main("tiny")
    table = result(project, "probes").filter(pl.col("operator") == "add")
    assert table.filter(pl.col("position") == "op1")["accuracy"].min() == 1
    assert table.filter(pl.col("position") == "operator", pl.col("layer") == 0)["accuracy"].item() > 0.5
    assert table["shuffled_accuracy"].max() < 0.3


@pytest.mark.parametrize("kind", ["llama"])
def test_layers_at_once_changes_nothing(project: Path):
    probes.main("tiny")
    first = (project / "probes.parquet").read_bytes()
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["probes"]["layers_at_once"] = 1
    Path("params.yaml").write_text(yaml.safe_dump(params))
    probes.main("tiny")
    assert (project / "probes.parquet").read_bytes() == first


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
    pl.read_parquet(project / "pairs.parquet").clear().write_parquet(project / "pairs.parquet")
    attention_patterns.main("tiny")
    assert len(result(project, "attention_patterns")) == 0


def test_token_activations_are_those_at_op1(project: Path, checkpoint_folder: Path):
    token_activations.main("tiny")
    table = result(project, "token_activations")
    subject = loaded(checkpoint_folder)
    assert len(table) == 20 * subject.architecture.neurons
    assert table.select("neuron", "number").rows() == [(n, m) for n in range(subject.architecture.neurons) for m in range(20)]
    expected = streams.neurons(subject, np.array([[1, 7 + 3]]), 0, 1)[0]
    np.testing.assert_allclose(table.filter(pl.col("number") == 7)["activation"], expected, rtol=1e-4, atol=1e-5)
