"""Circuits of digits on a random network: once with all neurons patched, once with few of them."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.lib.core.tables import write_table
from stages.lib.executor import runs
from stages.lib.sql import stage as query
from stages.lib.subject import Subject
from stages.neurons import neuron_attributions
from stages.store import architecture, prompts
from tests import vocabularies
from tests.micro import SETTINGS, alone, begin_project, changed, merged
from tests.neurons.test_digit_circuits import halves

ENTRIES, OPERATORS = ("first", "second"), ("add", "multiply")
LAYERS, NEURONS, FEW, SAMPLED, K = 2, 24, 2, 5, 4
MICRO = {
    "cells": {"largest_operand": 13, "largest_answer": 199},
    "pairs": {"pairs_per_split": 12, "seeds": [0]},
    "operator_overlaps": {"operator_ks": [K, 2 * K]},
}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write a random model with a digit tokenizer, its two entries and their pairs of prompts."""
    own = vocabularies.by_digit()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(own),
        hidden_size=16,
        intermediate_size=NEURONS,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4 + (parameter.ndim == 1)
    model.save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    common = {"source": "model", "dtype": "float32", "operators": [*OPERATORS]}
    entries: dict[str, Any] = {}
    for token, name in enumerate(ENTRIES):
        entries |= alone(name, **common, answer_token=token)["subjects"]
    digits = {"source": "model", "first": "first", "second": "second", "third": "second"}
    whole = changed(merged(SETTINGS, MICRO)) | {"digits": {"m": digits}}
    whole |= dict.fromkeys(("subjects", "with_pairs", "known", "with_mediation", "sized"), entries)
    begin_project(tmp_path, whole, monkeypatch)
    query.main("corpus/cells")
    for name in ENTRIES:
        write_pairs(Subject.named(name))
    return whole


def write_pairs(subject: Subject) -> None:
    """Write what comes before the neurons, as if every prediction was correct."""
    prompts.main(subject.name)
    cells = subject.table("store/prompts.parquet").filter(pl.col("result").is_not_null())
    correct = cells.select("subject", "operator", "op1", "op2", correct=True)
    write_table(correct, subject.path("store/predictions.parquet"))
    query.main("circuit/pairs", subject.name)
    write_variances(subject)
    late = {"subject": subject.name, "first_layer": 0, "layers": LAYERS}
    integers = pl.col("first_layer", "layers").cast(pl.Int16)
    late_layers = pl.DataFrame([late]).with_columns(integers)
    write_table(late_layers, subject.path("circuit/late_layers.parquet"))
    architecture.main(subject.name)
    neuron_attributions.main(subject.name)


def write_variances(subject: Subject) -> None:
    """Write random variances of the neurons' activations."""
    sites = list(product(OPERATORS, range(LAYERS), range(NEURONS)))
    types = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32}
    table = pl.DataFrame(sites, types, orient="row")
    variances = np.random.default_rng(0).uniform(1, 2, len(sites))
    table = table.with_columns(subject=pl.lit(subject.name), variance=variances)
    write_table(table, subject.path("store/neuron_variances.parquet"))


def run_stages(settings: dict[str, Any], sizes: dict[str, int]) -> pl.DataFrame:
    """Run the stages that patch neurons, with these sizes; return the table digit_circuits."""
    sized = {"sized": dict.fromkeys(ENTRIES, sizes)}
    Path("params.yaml").write_text(yaml.safe_dump(settings | sized))
    for name in ENTRIES:
        query.main("neurons/neuron_interventions", name)
        runs.main("neurons/neuron", name)
    query.main("neurons/digit_interventions", "m")
    runs.main("neurons/digit", "first", "neurons/digit_pairs")
    query.main("neurons/digit_circuits", "m")
    return pl.read_parquet("data/neurons/digit_circuits/m.parquet")


def test_few_patched_neurons_have_the_effects_that_all_neurons_have(settings: dict[str, Any]):
    every = run_stages(settings, {"patched_neurons": 0})
    assert set(every["k"]) == {K, 2 * K}
    for table in ("digit_pairs", "runs/digit"):
        assert pl.read_parquet(f"data/first/neurons/{table}.parquet").is_empty()
    effects, estimates = measured("effect"), measured("attribution")
    few = run_stages(settings, {"patched_neurons": FEW, "sampled_neurons": SAMPLED})
    assert set(few["k"]) == {K}
    assert len(few) == len(OPERATORS) * len(ENTRIES) ** 2
    is_sampled = np.zeros((LAYERS, NEURONS), bool)
    sample = Subject.named("second").table("neurons/neuron_interventions.parquet")
    sample = sample.filter(pl.col("operator").is_null(), position="last")
    for layer, [neuron] in sample.select("layer", "units").rows():
        is_sampled[layer, neuron] = True
    assert is_sampled.sum(1).tolist() == [SAMPLED] * LAYERS
    tops = np.argsort(-estimates, kind="stable")[..., :K]
    matched = pl.read_parquet("data/first/neurons/digit_matched.parquet")
    for row in few.rows(named=True):
        digit, operator = row["digit"] - 1, OPERATORS.index(row["operator"])
        own, others = tops[digit, operator], tops[row["of_digit"] - 1, operator]
        on_other_half = effects[digit, operator, ::-1]
        effect = np.take_along_axis(on_other_half, others, 2).sum() / 2
        own_effect = np.take_along_axis(on_other_half, own, 2).sum() / 2
        by_chance = K * on_other_half[:, is_sampled].mean() * LAYERS
        keys = {name: row[name] for name in ("digit", "of_digit", "operator")}
        half, layer, neuron = matched.filter(**keys).select("half", "layer", "neuron")
        assert len(neuron) == 2 * LAYERS * K
        matched_effect = on_other_half[half, layer, neuron].sum() / 2
        assert row["matched_share"] * own_effect == pytest.approx(matched_effect, abs=1e-3)
        shared = (own[..., :, None] == others[::-1, ..., None, :]).sum()
        assert row["effect"] == pytest.approx(effect, abs=1e-3)
        assert row["share_by_chance"] * own_effect == pytest.approx(by_chance, abs=1e-3)
        assert row["iou"] == pytest.approx(shared / (2 * own.size - shared))
        assert row["layers"] == LAYERS


def measured(measure: str) -> np.ndarray:
    """Return mean effects or attributions: (digits, operators, halves, layers, neurons)."""
    values = np.full((len(ENTRIES), len(OPERATORS), 2, LAYERS, NEURONS), np.nan)
    for digit, name in enumerate(ENTRIES):
        subject = Subject.named(name)
        table = patched(subject)
        if measure == "attribution":
            table = subject.table("neurons/neuron_attributions.parquet").filter(position="last")
        own_halves = halves({"pairs": subject.table("circuit/pairs.parquet")})
        keys = ["operator", "half", "layer", "neuron"]
        means = table.join(own_halves, on="pair").group_by(keys).agg(pl.col(measure).mean())
        for operator, half, layer, neuron, value in means.rows():
            values[digit, OPERATORS.index(operator), half, layer, neuron] = value
    assert np.isfinite(values).all()
    return values


def patched(subject: Subject) -> pl.DataFrame:
    """Return each late neuron's effect on each pair."""
    interventions = subject.table("neurons/neuron_interventions.parquet").filter(position="last")
    neuron = pl.col("units").list.first().alias("neuron")
    sites = interventions.select("intervention", "layer", neuron)
    logit_runs = subject.table("neurons/runs/neuron.parquet")
    gap = pl.col("counterfactual_logit").cast(pl.Float64) - pl.col("answer_logit")
    gaps = logit_runs.select("intervention", "pair", gap=gap)
    clean = gaps.filter(intervention=0).select("pair", clean="gap")
    both = gaps.join(clean, on="pair").join(sites, on="intervention")
    return both.with_columns(effect=(pl.col("gap") - pl.col("clean")) / 2)
