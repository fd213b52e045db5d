"""Numbers of several tokens from end to end: prompts, dump, pairs, patching and heuristics, against plain forward passes."""

from operator import add, mul
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.heuristics import catalogue, scores, spectra
from stages.lib import ask
from stages.lib.core import hdf5_store
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.executor import runs
from stages.lib.heuristics import asked
from stages.lib.heuristics.names import parse
from stages.lib.model import checkpoint, residuals
from stages.lib.sql import stage as query
from stages.lib.subject import Subject
from stages.store import answer_accuracy, dump, prompts
from stages.subjects import origins
from stages.theories import atoms, helix_fits, theory_fits
from stages.theories.settings import Helix, TheoryFits
from tests import vocabularies
from tests.micro import ROOT, SETTINGS, alone, changed, merged

CASES = [
    ("digits", 0, None),
    ("qwen", 1, None),
    ("llama-2", 1, None),
    ("llama-3", 0, None),
    ("llama-3", 1, 1999),
]
LAYERS = 2
KEYS = ["operator", "op1", "op2"]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}{'-large' if case[2] else ''}")
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    """A random model behind such a tokenizer, asked 12 + 12 and the like; every answer counts as right, so that there are pairs."""
    kind, answer_token, largest_answer = request.param
    own = vocabularies.KINDS[kind]()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(own), hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=2, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4 + (parameter.ndim == 1)
    model.save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    entry = alone(
        "s",
        source="model",
        dtype="float32",
        bos=own.bos_token is not None,
        answer_token=answer_token,
        operators=["add", "multiply"],
    )
    whole = changed(merged(SETTINGS, {"pairs": {"pairs_per_split": 30, "seeds": [0]}})) | entry
    whole["cells"] |= {
        "largest_operand": 40 if largest_answer else 13,
        "largest_answer": largest_answer or 199,
    }
    whole |= dict.fromkeys(("with_pairs", "known", "with_mediation", "sized"), entry["subjects"])
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(whole))
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    monkeypatch.setattr(
        "stages.lib.core.settings.files", lambda root=Path(): [root / "params.yaml"]
    )
    monkeypatch.chdir(tmp_path)
    query.main("corpus/cells")
    prompts.main("s")
    dump.main("s")
    origins.main()
    return Subject.named("s")


def test_all_of_it_is_what_plain_passes_give(subject: Subject):
    own = vocabularies.PreTrainedTokenizerFast.from_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model", attn_implementation="eager").eval()
    _dumped(subject, own, model)
    _whole_answers(subject, own, model)
    _patched(subject, model)
    _heuristics(subject)
    _streams(subject, model)
    _theories(subject)


def plain(
    model, tokens: list[list[int]], watch: dict | None = None, change: tuple | None = None
) -> torch.Tensor:
    """Logits behind prompts of one length: (prompts, vocabulary). watch: (layer, "mlp" or "head") -> what enters the output projection,
    (prompts, positions, features); change: layer, "mlp" or "head", positions (prompts, some), features (others,), values (prompts, some,
    others)."""
    handles = []
    for layer, block in enumerate(model.model.layers):
        for kind, module in (("mlp", block.mlp.down_proj), ("head", block.self_attn.o_proj)):

            def hook(_, inputs, place=(layer, kind)):
                [x] = inputs
                if watch is not None:
                    watch[place] = x.clone()
                if change and change[:2] == place:
                    _, _, at, features, values = change
                    x = x.clone()
                    x[
                        torch.arange(len(x))[:, None, None],
                        torch.tensor(at)[:, :, None],
                        torch.tensor(features),
                    ] = values
                    return (x,)

            handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(tokens)).logits[:, -1]
    for handle in handles:
        handle.remove()
    return logits


def answered(subject: Subject) -> str:
    """The first operator any of whose answers has the token that is asked for."""
    return subject.table("store/prompts.parquet").drop_nulls("answer_token")["operator"][0]


def _dumped(subject: Subject, own, model) -> None:
    """Activations and answers by prompt; means by slot: an operand's tokens counted from its last."""
    table, predictions = (
        subject.table("store/prompts.parquet"),
        subject.table("store/predictions.parquet"),
    )
    numbers = dict(subject.table("store/numbers.parquet").select("token", "number").rows())
    answers = {
        row[:3]: row[3:]
        for row in predictions.select(
            "operator", "op1", "op2", "predicted", "correct", "max_logit"
        ).rows()
    }
    largest_answer = yaml.safe_load(Path("params.yaml").read_text())["cells"]["largest_answer"]
    chosen, k = subject.settings, subject.settings.answer_token or 0
    means = hdf5_store.read_array(subject.path("store/means.h5"), "neurons")
    for place, (store, operator) in enumerate(
        zip(subject.activation_stores(), chosen.operators, strict=True)
    ):
        sums, counts = np.zeros(means.shape[1:]), np.zeros(means.shape[2])
        of = table.filter(operator=operator)
        firsts = "op1_first_position" in table.columns
        width = {
            o: int((of[f"{o}_position"] - of[f"{o}_first_position"]).max()) + 1 if firsts else 1
            for o in ("op1", "op2")
        }
        maps = {layer: store.read(layer, slice(None), slice(None)) for layer in store.layers}
        symbol, compute = {"add": ("+", add), "multiply": ("*", mul)}[operator]
        for _, some in of.group_by(pl.col("tokens").list.len()):
            watch: dict = {}
            logits = plain(model, some["tokens"].to_list(), watch)
            seen = {layer: x.numpy() for (layer, kind), x in watch.items() if kind == "mlp"}
            for layer, x in seen.items():
                np.testing.assert_allclose(
                    maps[layer][:, some["op1"], some["op2"]].T, x[:, -1], rtol=2e-3, atol=2e-3
                )
            for number, row in enumerate(some.rows(named=True)):
                result, known = row["result"], compute(row["op1"], row["op2"])
                front = [own.bos_token_id] if chosen.bos else []
                head = own(f"{row['op1']}{symbol}{row['op2']}=", add_special_tokens=False)[
                    "input_ids"
                ]
                whole = own(f"{row['op1']}{symbol}{row['op2']}={known}", add_special_tokens=False)[
                    "input_ids"
                ]
                said = known <= largest_answer
                assert row["tokens"] == front + head + (whole[len(head) :][:k] if said else [])
                assert (result is not None) == (said and len(whole) - len(head) > k)
                if result is not None:
                    assert (result, row["answer_token"]) == (known, whole[len(head) + k])
                    predicted, correct, largest = answers[operator, row["op1"], row["op2"]]
                    best = int(logits[number].argmax())
                    assert (predicted, correct) == (numbers.get(best), best == row["answer_token"])
                    np.testing.assert_allclose(largest, float(logits[number].max()), rtol=1e-4)
                slot, slots = -1, []
                for at in range(len(row["tokens"])):
                    slot += 1
                    for operand in ("op1", "op2"):
                        if firsts and at == row[f"{operand}_first_position"]:
                            slot += width[operand] - (row[f"{operand}_position"] - at + 1)
                    slots.append(slot)
                counts[slots] += 1
                for layer, x in seen.items():
                    sums[layer, slots] += x[number]
        np.testing.assert_allclose(means[place], sums / counts[None, :, None], rtol=1e-3, atol=1e-4)


def _whole_answers(subject: Subject, own, model) -> None:
    """Greedy decoding, token by token."""
    answer_accuracy.main("s")
    found = subject.table("store/answer_accuracy.parquet")
    table, said = subject.table("store/prompts.parquet").filter(pl.col("result").is_not_null()), {}
    for row in table.sample(min(60, len(table)), seed=0).rows(named=True):
        prompt = row["tokens"][: len(row["tokens"]) - (subject.settings.answer_token or 0)]
        symbol = {"add": "+", "multiply": "*"}[row["operator"]]
        whole = own(f"{row['op1']}{symbol}{row['op2']}={row['result']}", add_special_tokens=False)[
            "input_ids"
        ]
        wanted = whole[len(prompt) - len([1] * subject.settings.bos) :]
        greedy: list[int] = []
        while len(greedy) < len(wanted):
            greedy.append(int(plain(model, [prompt + greedy])[0].argmax()))
        said[row["operator"], row["op1"], row["op2"]] = (prompt, wanted, greedy == wanted)
    asked_now = [(prompt, wanted) for prompt, wanted, _ in said.values()]
    assert ask.says(checkpoint.of(subject.settings), asked_now, 7, "test").tolist() == [
        right for *_, right in said.values()
    ]
    cells = subject.table("store/predictions.parquet")
    assert found["cells"].sum() == len(cells)
    assert (found["accuracy"] * found["cells"]).sum() == pytest.approx(cells["correct"].sum())
    asked_for = cells.join(table, on=KEYS)
    for row in found.iter_rows(named=True):
        assert row["split"] == "all"  # this model was not trained here
        group = asked_for.filter(operator=row["operator"])
        for name, column in (("majority", "answer_token"), ("majority_whole", "result")):
            answers = group[column].to_list()
            most = max(answers.count(answer) for answer in answers)
            assert row[f"{name}_accuracy"] == most / row["cells"]


def _patched(subject: Subject, model) -> None:
    """Every place of an operand, and all places, replaced by each kind of value, held against a plain pass with a hook."""
    right = subject.table("store/predictions.parquet").with_columns(correct=pl.lit(True))
    write_table(right, subject.path("store/predictions.parquet"))
    query.main("circuit/pairs", "s")
    pairs = subject.table("circuit/pairs.parquet")
    assert len(pairs) >= 10
    assert (pairs["answer_token"] != pairs["counterfactual_answer_token"]).all()
    assert (pairs["tokens"].list.len() == pairs["counterfactual_tokens"].list.len()).all()
    assert (pairs["positions"] == pairs["counterfactual_positions"]).all()
    roles = [field.name for field in pairs.schema["positions"].fields]
    several = "op1_first" in roles
    patches = [
        (component, layer, units, role, replacement)
        for component, layer, units in (("neuron", 0, [3, 7]), ("head", 1, [1]), ("mlp", 0, None))
        for role in [*roles, "all"]
        for replacement in ("zero", "mean", "counterfactual")
    ]
    schema = {
        "subject": pl.String, "intervention": pl.Int32, "operator": pl.String, "split": pl.String, "component": pl.String, "layer": pl.Int16,
        "units": pl.List(pl.Int32), "position": pl.String, "key_position": pl.String, "replacement": pl.String,
    }  # fmt: skip
    rows = [
        ("s", i, None, None, c, layer, units, role, None, by)
        for i, (c, layer, units, role, by) in enumerate(patches)
    ]
    write_table(
        pl.DataFrame(rows, schema=schema, orient="row"),
        subject.path("circuit/own_interventions.parquet"),
    )
    runs.main("circuit/own", "s")
    found = {(row[0], row[1]): row[2:] for row in subject.table("circuit/runs/own.parquet").select(
        "intervention", "pair", "answer_logit", "counterfactual_logit", "max_logit").rows()}  # fmt: skip
    assert len(found) == len(patches) * len(pairs)
    means = {
        kind: np.nanmean(hdf5_store.read_array(subject.path("store/means.h5"), name), 0)
        for kind, name in (("mlp", "neurons"), ("head", "heads"))
    }
    longest = {
        o: max((p[o] - p[f"{o}_first"] + 1 for p in pairs["positions"]), default=1)
        if several
        else 1
        for o in ("op1", "op2")
    }
    attributes = hdf5_store.read_attributes(subject.path("store/means.h5"))
    assert all(int(attributes.get(f"{o}_tokens", 1)) >= longest[o] for o in longest)
    for i, (component, layer, units, role, by) in enumerate(patches):
        kind = "head" if component == "head" else "mlp"
        chosen = list(range(24)) if units is None else [*range(8, 16)] if kind == "head" else units
        for _, some in pairs[i % 5 :: 9].group_by(pl.col("tokens").list.len()):
            length = len(some["tokens"][0])
            at = [
                list(range(length)) if role == "all" else [positions[role]]
                for positions in some["positions"]
            ]
            if by == "zero":
                new = torch.zeros(len(some), len(at[0]), len(chosen))
            elif by == "mean":
                slots = [[place + sum(
                    int(attributes[f"{o}_tokens"]) - (positions[o] - positions[f"{o}_first"] + 1)
                    for o in ("op1", "op2") if several and place >= positions[f"{o}_first"]) for place in places]
                    for places, positions in zip(at, some["positions"], strict=True)]  # fmt: skip
                new = torch.from_numpy(
                    means[kind][layer].reshape(means[kind].shape[1], -1)[slots][..., chosen]
                ).float()
            else:
                other: dict = {}
                plain(model, some["counterfactual_tokens"].to_list(), other)
                new = other[layer, kind][torch.arange(len(some))[:, None], torch.tensor(at)][
                    ..., chosen
                ]
            logits = plain(model, some["tokens"].to_list(), change=(layer, kind, at, chosen, new))
            for pair, of_pair in zip(some.rows(named=True), logits, strict=True):
                expected = [
                    float(x)
                    for x in (
                        of_pair[pair["answer_token"]],
                        of_pair[pair["counterfactual_answer_token"]],
                        of_pair.max(),
                    )
                ]
                np.testing.assert_allclose(
                    found[i, pair["pair"]], expected, rtol=1e-4, atol=2e-4, err_msg=str(patches[i])
                )


def _heuristics(subject: Subject) -> None:
    """Heuristics of the token that is asked for, and of the whole result, scored by counting."""
    catalogue.main()
    scores.main("s")
    found = subject.table("heuristics/scores.parquet")
    assert {"asked", "result"} <= set(found["quantity"])
    operator = answered(subject)
    [store], votes = (
        [one for one in subject.activation_stores() if one.attributes["operator"] == operator],
        subject.value_logits(),
    )
    table = subject.table("store/prompts.parquet")
    numbers = subject.table("store/numbers.parquet").rename({"token": "answer_token"})
    cells = (
        table.filter(operator=operator)
        .drop_nulls("result")
        .join(numbers, on=["subject", "answer_token"])
        .sort("op1", "op2")
    )
    known = asked.numbers(store)
    assert known[cells["result"].to_numpy()].tolist() == cells["number"].to_list()
    told = found.filter(
        pl.col("quantity").is_in(["asked", "result"]), operator=operator, side="top"
    ).rows(named=True)[:40]
    assert len(told) == 40
    for row in told:
        neuron = slice(row["neuron"], row["neuron"] + 1)
        activation = store.read(row["layer"], neuron, slice(None))[0].astype(np.float32)[
            cells["op1"], cells["op2"]
        ]
        said = activation * votes.read(row["layer"], neuron, slice(None))[0][cells["number"]]
        predicate = parse(row["heuristic"]).predicate
        of = cells.rename({"number": "asked"}).select("op1", "op2", "result", "asked")
        holds = _holds(of, predicate)
        first = np.argsort(-said, kind="stable")[: holds.sum()]
        assert row["score"] == pytest.approx(holds[first].mean())
        assert row["share"] == pytest.approx(holds.mean())


def _streams(subject: Subject, model) -> None:
    """What enters each layer at the roles, of prompts of several lengths together."""
    operator = answered(subject)
    split = pl.read_parquet("data/corpus/cells.parquet").select("operator", "op1", "op2", "split")
    cells = subject.table("store/prompts.parquet").filter(pl.col("answer_token").is_not_null()).join(split, on=["operator", "op1", "op2"])
    pairs = subject.table("circuit/pairs.parquet").filter(operator=operator, split="evaluation").sort("pair")
    prompts = helix_fits.Prompts.draw(cells.filter(operator=operator), pairs, load(Helix))
    assert len(prompts.training) > 20
    assert [len(prompts.positions) - len(pairs), len(pairs)] == [
        len(prompts.training),
        len(prompts.pairs),
    ]
    loaded = checkpoint.of(subject.settings)
    with residuals.read(
        loaded, prompts.tokens, prompts.positions, 7, subject.path("theories"), ""
    ) as stored:
        streams = np.array(
            [[stored.at(level, place) for place in range(3)] for level in range(LAYERS)]
        )
    for number, tokens in list(enumerate(prompts.tokens))[::9]:
        with torch.no_grad():
            states = model(
                input_ids=torch.tensor([tokens]), output_hidden_states=True
            ).hidden_states
        expected = [
            level[0][prompts.positions[number]].numpy() for level in states[:-1]
        ]  # the last one is normed
        np.testing.assert_allclose(streams[:, :, number], expected, rtol=1e-3, atol=1e-4)


def _theories(subject: Subject) -> None:
    """Theories of neurons whose value logits are of tokens, not of results."""
    write_table(
        pl.DataFrame({"subject": "s", "first_layer": 1, "layers": LAYERS}),
        subject.path("circuit/late_layers.parquet"),
    )
    spectra.main("s")
    theory_fits.main("s")
    fits, operator = subject.table("theories/theory_fits.parquet"), answered(subject)
    assert set(fits["operator"]) == {"add", "multiply"}
    for name, some in fits.group_by("operator"):
        known = (
            subject.table("store/prompts.parquet").filter(operator=name[0])["answer_token"].count()
            > 0
        )
        assert (some["cells"] > 0).all() == known
        assert some["value"].is_null().all() == (not known)
    [store] = [one for one in subject.activation_stores() if one.attributes["operator"] == operator]
    settings, votes = load(TheoryFits), subject.value_logits().read(1, slice(None), slice(None)).astype(np.float64)
    theorists = theory_fits.NeuronTheories(subject, store, [1], subject.table("circuit/pairs.parquet").filter(operator=operator), settings)
    late = subject.table("heuristics/spectra.parquet").filter(operator=operator, layer=1)
    strongest = atoms.waves(
        late,
        store.columns["result"].shape,
        settings.waves,
        theorists.cells.op1,
        theorists.cells.op2,
    )
    np.testing.assert_array_equal(
        theorists.terms["waves"], atoms.scaled(strongest, theorists.cells.training)
    )
    said: dict[str, list[np.ndarray]] = {}
    for part in theorists.blocks():
        for what, values in theorists.predictions(1, part):
            said.setdefault(what, []).append(values)
    trained = slice(theorists.cells.training)
    mean = (
        store.read(1, slice(None), slice(None))[
            :, theorists.cells.op1[trained], theorists.cells.op2[trained]
        ]
        .astype(float)
        .mean(1)
    )
    assert theorists.cells.training > 20
    np.testing.assert_allclose(
        np.concatenate(said["mean"]),
        np.repeat(mean[:, None], said["mean"][0].shape[1], 1),
        atol=1e-9,
    )
    written, *_ = theorists.tally.written[1, "bag", settings.budgets[0], ""]
    cells, numbers = (
        theorists.cells,
        dict(subject.table("store/numbers.parquet").select("token", "number").rows()),
    )
    tokens = {
        row[:2]: row[2]
        for row in subject.table("store/prompts.parquet")
        .filter(operator=operator)
        .select("op1", "op2", "answer_token")
        .rows()
    }
    assert len(written) == cells.held_out > 0
    for place, value in enumerate(written, cells.training):
        cell = int(cells.op1[place]), int(cells.op2[place])
        activations = store.read(1, slice(None), slice(None))[:, *cell].astype(np.float64)
        assert value == pytest.approx(
            activations @ votes[:, numbers[tokens[cell]]], rel=1e-6, abs=1e-9
        )


def _holds(cells: pl.DataFrame, predicate: str) -> np.ndarray:
    return np.array(
        [
            holds
            for (holds,) in duckdb.sql(
                f"select ({predicate})::boolean from cells order by op1, op2"
            ).fetchall()
        ]
    )
