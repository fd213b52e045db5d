"""Numbers of several tokens from end to end, compared with plain forward passes.

Prompts, dump, pairs, patching, heuristics and theories of random models, with each kind of
tokenizer.
"""

from collections.abc import Callable, Iterator
from operator import add, mul
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import polars as pl
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from stages.heuristics import catalogue, scores, spectra
from stages.lib import ask
from stages.lib.core import hdf5_store, progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.executor import runs
from stages.lib.heuristics import answer_tokens
from stages.lib.heuristics.names import parse
from stages.lib.model import checkpoint, residuals
from stages.lib.sql import stage as query
from stages.lib.subject import Subject
from stages.store import answer_accuracy, dump, prompts
from stages.subjects import origins
from stages.theories import atoms, helix_fits, theory_fits
from stages.theories.settings import Helix, TheoryFits
from tests import vocabularies
from tests.micro import SETTINGS, alone, begin_project, changed, merged

CASES = [
    ("digits", 0, None),
    ("qwen", 1, None),
    ("llama-2", 1, None),
    ("llama-3", 1, 1999),
]
LAYERS, NEURONS, HEAD_WIDTH = 2, 24, 8
KEYS = ["operator", "op1", "op2"]
OPERANDS = ("op1", "op2")
CALCULATE: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", add),
    "multiply": ("*", mul),
}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}{'-large' if case[2] else ''}")
def subject(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Subject:
    """A random model with such a tokenizer, and its prompts and dump."""
    kind, answer_token, largest_answer = request.param
    own = vocabularies.KINDS[kind]()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(own),
        hidden_size=2 * HEAD_WIDTH,
        intermediate_size=NEURONS,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
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
        operators=[*CALCULATE],
    )
    whole = changed(merged(SETTINGS, {"pairs": {"pairs_per_split": 30, "seeds": [0]}})) | entry
    whole["cells"] |= {
        "largest_operand": 40 if largest_answer else 13,
        "largest_answer": largest_answer or 199,
    }
    whole |= dict.fromkeys(("with_pairs", "known", "with_mediation", "sized"), entry["subjects"])
    begin_project(tmp_path, whole, monkeypatch)
    query.main("corpus/cells")
    prompts.main("s")
    dump.main("s")
    origins.main()
    return Subject.named("s")


def test_every_stage_gives_what_plain_passes_give(subject: Subject):
    own = vocabularies.PreTrainedTokenizerFast.from_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model", attn_implementation="eager").eval()
    _prompts(subject, own)
    _dump(subject, model)
    _whole_answers(subject, own, model)
    _patched(subject, model)
    _heuristics(subject)
    _residual_streams(subject, model)
    _theories(subject)


class Change(NamedTuple):
    """What a plain pass replaces in the input of an output projection.

    kind: "mlp" or "head"; positions: (prompts, some); features: (some,); values: (prompts,
    positions, features).
    """

    layer: int
    kind: str
    positions: list[list[int]]
    features: list[int]
    values: torch.Tensor


Watched = dict[tuple[int, str], torch.Tensor]


def plain(
    model,
    tokens: list[list[int]],
    watched: Watched | None = None,
    change: Change | None = None,
) -> torch.Tensor:
    """Return the logits after prompts of the same length, (prompts, vocabulary).

    watched: gets the inputs of the output projections, (prompts, positions, features), by layer and
    kind.
    """
    handles = []
    for layer, block in enumerate(model.model.layers):
        for kind, module in (("mlp", block.mlp.down_proj), ("head", block.self_attn.o_proj)):

            def hook(_, inputs, place=(layer, kind)):
                [x] = inputs
                if watched is not None:
                    watched[place] = x.clone()
                if change and change[:2] == place:
                    rows = torch.arange(len(x))[:, None, None]
                    positions = torch.tensor(change.positions)[:, :, None]
                    x = x.clone()
                    x[rows, positions, torch.tensor(change.features)] = change.values
                    return (x,)

            handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(tokens)).logits[:, -1]
    for handle in handles:
        handle.remove()
    return logits


def by_length(table: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table of prompts, those of each length together."""
    for _, rows in table.group_by(pl.col("tokens").list.len()):
        yield rows


def answered(subject: Subject) -> str:
    """The first operator any of whose answers has the predicted token."""
    return subject.table("store/prompts.parquet").drop_nulls("answer_token")["operator"][0]


def store_of(subject: Subject, operator: str):
    [store] = [
        store for store in subject.activation_stores() if store.attributes["operator"] == operator
    ]
    return store


def numbers_of_tokens(subject: Subject) -> dict[int, int]:
    return dict(subject.table("store/numbers.parquet").select("token", "number").rows())


def encoded(own, text: str) -> list[int]:
    return own(text, add_special_tokens=False)["input_ids"]


def _prompts(subject: Subject, own) -> None:
    """Prompts and answers in tokens."""
    settings = subject.settings
    largest_answer = yaml.safe_load(Path("params.yaml").read_text())["cells"]["largest_answer"]
    front = [own.bos_token_id] if settings.bos else []
    for row in subject.table("store/prompts.parquet").rows(named=True):
        symbol, calculate = CALCULATE[row["operator"]]
        result = calculate(row["op1"], row["op2"])
        text = f"{row['op1']}{symbol}{row['op2']}="
        prompt, answer = encoded(own, text), []
        if result <= largest_answer:
            answer = encoded(own, f"{text}{result}")[len(prompt) :]
        assert row["tokens"] == front + prompt + answer[: settings.answer_token]
        if len(answer) > settings.answer_token:
            expected = (result, answer[settings.answer_token])
            assert (row["result"], row["answer_token"]) == expected
        else:
            assert row["result"] is None


def _dump(subject: Subject, model) -> None:
    """Activations and predictions by prompt; means by slot, aligned to operands' last tokens."""
    table = subject.table("store/prompts.parquet")
    means = hdf5_store.read_array(subject.path("store/means.h5"), "neurons")
    for i, (store, operator) in enumerate(zip(subject.activation_stores(), CALCULATE, strict=True)):
        own = table.filter(operator=operator)
        widths = _widths(own)
        sums, counts = np.zeros(means.shape[1:]), np.zeros(means.shape[2])
        for rows in by_length(own):
            watched: Watched = {}
            logits = plain(model, rows["tokens"].to_list(), watched)
            _predictions(subject, rows, logits.numpy())
            slots = np.array([_slots(row, widths) for row in rows.rows(named=True)])
            np.add.at(counts, slots, 1)
            for layer in store.layers:
                activations = watched[layer, "mlp"].numpy()
                stored = store.read(layer, slice(None), slice(None))
                stored = stored[:, rows["op1"], rows["op2"]].T
                np.testing.assert_allclose(stored, activations[:, -1], rtol=2e-3, atol=2e-3)
                np.add.at(sums[layer], slots, activations)
        np.testing.assert_allclose(means[i], sums / counts[:, None], rtol=1e-3, atol=1e-4)


def _widths(table: pl.DataFrame) -> dict[str, int]:
    """The tokens of the longest operands; empty if all operands are one token."""
    if "op1_first_position" not in table.columns:
        return {}
    widths = {}
    for o in OPERANDS:
        lengths = table[f"{o}_position"] - table[f"{o}_first_position"] + 1
        widths[o] = int(lengths.max())
    return widths


def _slots(row: dict[str, Any], widths: dict[str, int]) -> list[int]:
    """The slot of each token of a prompt, a row of the table prompts."""
    slots = np.arange(len(row["tokens"]))
    for o, width in widths.items():
        first, last = row[f"{o}_first_position"], row[f"{o}_position"]
        slots[first:] += width - (last - first + 1)
    return slots.tolist()


def _predictions(subject: Subject, rows: pl.DataFrame, logits: np.ndarray) -> None:
    """Predictions for prompts whose logits are (prompts, vocabulary)."""
    numbers = numbers_of_tokens(subject)
    predicted = rows.select(*KEYS, "answer_token").with_columns(
        best=pl.Series(logits.argmax(1)),
        largest=pl.Series(logits.max(1)),
    )
    table = subject.table("store/predictions.parquet").join(predicted, on=KEYS)
    assert len(table) == predicted["answer_token"].count()
    expected = table["best"].replace_strict(numbers, default=None, return_dtype=pl.Int32)
    assert table["predicted"].to_list() == expected.to_list()
    assert table["correct"].to_list() == (table["best"] == table["answer_token"]).to_list()
    np.testing.assert_allclose(table["max_logit"], table["largest"], rtol=1e-4)


def _whole_answers(subject: Subject, own, model) -> None:
    """Greedy decoding, token by token."""
    answer_accuracy.main("s")
    measured = subject.table("store/answer_accuracy.parquet")
    table = subject.table("store/prompts.parquet").filter(pl.col("result").is_not_null())
    answers, correct = [], []
    for row in table.sample(min(60, len(table)), seed=0).rows(named=True):
        prompt = row["tokens"][: len(row["tokens"]) - subject.settings.answer_token]
        symbol, _ = CALCULATE[row["operator"]]
        whole = encoded(own, f"{row['op1']}{symbol}{row['op2']}={row['result']}")
        answer = whole[len(prompt) - bool(subject.settings.bos) :]
        greedy: list[int] = []
        while len(greedy) < len(answer):
            greedy.append(int(plain(model, [prompt + greedy])[0].argmax()))
        answers.append((prompt, answer))
        correct.append(greedy == answer)
    assert ask.says(checkpoint.from_settings(subject.settings), answers, 7).tolist() == correct
    cells = subject.table("store/predictions.parquet")
    assert measured["cells"].sum() == len(cells)
    accurate = (measured["accuracy"] * measured["cells"]).sum()
    assert accurate == pytest.approx(cells["correct"].sum())
    known = cells.join(table, on=KEYS)
    for row in measured.iter_rows(named=True):
        assert row["split"] == "all"  # this model was not trained here
        group = known.filter(operator=row["operator"])
        for name, column in (("majority", "answer_token"), ("majority_whole", "result")):
            most = group[column].unique_counts().max()
            assert row[f"{name}_accuracy"] == most / row["cells"]


PATCHED = {"neuron": (0, [3, 7]), "head": (1, [1]), "mlp": (0, None)}  # component -> layer, units
FEATURES = {
    "neuron": [3, 7],
    "head": list(range(HEAD_WIDTH, 2 * HEAD_WIDTH)),
    "mlp": list(range(NEURONS)),
}


def _patched(subject: Subject, model) -> None:
    """Runs with each role, and all positions, replaced by each kind of value."""
    everything_correct = subject.table("store/predictions.parquet").with_columns(
        correct=pl.lit(True)
    )
    write_table(everything_correct, subject.path("store/predictions.parquet"))  # for enough pairs
    query.main("circuit/pairs", "s")
    pairs = subject.table("circuit/pairs.parquet")
    assert len(pairs) >= 10
    assert (pairs["answer_token"] != pairs["counterfactual_answer_token"]).all()
    assert (pairs["tokens"].list.len() == pairs["counterfactual_tokens"].list.len()).all()
    assert (pairs["positions"] == pairs["counterfactual_positions"]).all()
    interventions = _interventions(pairs)
    write_table(interventions, subject.path("circuit/own_interventions.parquet"))
    runs.main("circuit/own", "s")
    measures = ["answer_logit", "counterfactual_logit", "max_logit"]
    table = subject.table("circuit/runs/own.parquet").select("intervention", "pair", *measures)
    assert len(table) == len(interventions) * len(pairs)
    measured = {(intervention, pair): row for intervention, pair, *row in table.rows()}
    for row in interventions.rows(named=True):
        number = row["intervention"]
        for some in by_length(pairs[number % 5 :: 9]):
            change = _change(subject, model, row, some)
            logits = plain(model, some["tokens"].to_list(), change=change)
            columns = [some["answer_token"], some["counterfactual_answer_token"]]
            expected = [logits[range(len(some)), column.to_list()] for column in columns]
            np.testing.assert_allclose(
                np.array([measured[number, pair] for pair in some["pair"]]),
                torch.stack([*expected, logits.max(1).values], 1),
                rtol=1e-4,
                atol=2e-4,
                err_msg=str(row),
            )


def _interventions(pairs: pl.DataFrame) -> pl.DataFrame:
    roles = [field.name for field in pairs.schema["positions"].fields]  # type: ignore[attr-defined]
    rows: list[dict[str, Any]] = []
    for component, (layer, units) in PATCHED.items():
        for position in [*roles, "all"]:
            row = {"component": component, "layer": layer, "units": units, "position": position}
            rows += [row | {"replacement": by} for by in ("zero", "mean", "counterfactual")]
    schema = {
        "subject": pl.String,
        "intervention": pl.Int32,
        "operator": pl.String,
        "split": pl.String,
        "component": pl.String,
        "layer": pl.Int16,
        "units": pl.List(pl.Int32),
        "position": pl.String,
        "key_position": pl.String,
        "replacement": pl.String,
    }
    table = pl.DataFrame(rows, schema=schema)
    return table.with_columns(
        subject=pl.lit("s"), intervention=pl.arange(len(rows), dtype=pl.Int32)
    )


def _change(subject: Subject, model, row: dict[str, Any], pairs: pl.DataFrame) -> Change:
    """What an intervention replaces in pairs of prompts of one length."""
    layer, features = row["layer"], FEATURES[row["component"]]
    kind = "head" if row["component"] == "head" else "mlp"
    tokens, roles = pairs["tokens"].to_list(), pairs["positions"].to_list()
    positions = [list(range(len(tokens[0])))] * len(pairs)
    if row["position"] != "all":
        positions = [[own_roles[row["position"]]] for own_roles in roles]
    if row["replacement"] == "zero":
        values = torch.zeros(len(pairs), len(positions[0]), len(features))
    elif row["replacement"] == "mean":
        name = {"mlp": "neurons", "head": "heads"}[kind]
        means = np.nanmean(hdf5_store.read_array(subject.path("store/means.h5"), name), 0)[layer]
        slots = _slots_of_pairs(subject, tokens, roles)
        means = means.reshape(len(means), -1)[np.take_along_axis(slots, np.array(positions), 1)]
        values = torch.from_numpy(means[..., features]).float()
    else:
        watched: Watched = {}
        plain(model, pairs["counterfactual_tokens"].to_list(), watched)
        prompt = torch.arange(len(pairs))[:, None]
        values = watched[layer, kind][prompt, torch.tensor(positions)][..., features]
    return Change(layer, kind, positions, features, values)


def _slots_of_pairs(subject: Subject, tokens: list, roles: list[dict[str, int]]) -> np.ndarray:
    """The slots of each prompt's tokens, (prompts, tokens), with the widths that means.h5 names."""
    attributes = hdf5_store.read_attributes(subject.path("store/means.h5"))
    widths = {o: int(attributes[f"{o}_tokens"]) for o in OPERANDS if f"{o}_tokens" in attributes}
    slots = []
    for prompt, own_roles in zip(tokens, roles, strict=True):
        row = {f"{role}_position": position for role, position in own_roles.items()}
        slots.append(_slots(row | {"tokens": prompt}, widths))
    return np.array(slots)


def _heuristics(subject: Subject) -> None:
    """Heuristics of the predicted token's number, and of the whole result, scored by counting."""
    catalogue.main()
    scores.main("s")
    table = subject.table("heuristics/scores.parquet")
    assert {"asked", "result"} <= set(table["quantity"])
    operator = answered(subject)
    store, votes = store_of(subject, operator), subject.value_logits()
    numbers = subject.table("store/numbers.parquet").rename({"token": "answer_token"})
    cells = (
        subject.table("store/prompts.parquet")
        .filter(operator=operator)
        .drop_nulls("result")
        .join(numbers, on=["subject", "answer_token"])
        .sort("op1", "op2")
    )
    known = answer_tokens.numbers(store)
    assert known[cells["result"].to_numpy()].tolist() == cells["number"].to_list()
    cells_of_query = cells.rename({"number": "asked"}).select("op1", "op2", "result", "asked")
    of_answers = pl.col("quantity").is_in(["asked", "result"])
    rows = table.filter(of_answers, operator=operator, side="top").rows(named=True)[:40]
    assert len(rows) == 40
    for row in rows:
        neuron = slice(row["neuron"], row["neuron"] + 1)
        [activations] = store.read(row["layer"], neuron, slice(None)).astype(np.float32)
        [logits] = votes.read(row["layer"], neuron, slice(None))
        contributions = activations[cells["op1"], cells["op2"]] * logits[cells["number"]]
        holds = _holds(cells_of_query, parse(row["heuristic"]).predicate)
        first = np.argsort(-contributions, kind="stable")[: holds.sum()]
        assert row["score"] == pytest.approx(holds[first].mean())
        assert row["chance_score"] == pytest.approx(holds.mean())


def _holds(cells: pl.DataFrame, predicate: str) -> np.ndarray:
    """Which cells satisfy a predicate."""
    query = f"select ({predicate})::boolean as holds from cells order by op1, op2"
    return np.array(duckdb.sql(query).pl()["holds"])


def _residual_streams(subject: Subject, model) -> None:
    """The residual stream entering each layer at the roles, for prompts of several lengths."""
    operator = answered(subject)
    split = pl.read_parquet("data/corpus/cells.parquet").select(*KEYS, "split")
    cells = subject.table("store/prompts.parquet").drop_nulls("answer_token").join(split, on=KEYS)
    pairs = subject.table("circuit/pairs.parquet")
    pairs = pairs.filter(operator=operator, split="evaluation").sort("pair")
    prompts = helix_fits.Prompts.draw(cells.filter(operator=operator), pairs, load(Helix))
    sample = len(prompts.training)
    assert sample > 20
    assert len(prompts.positions) == sample + len(pairs)
    of_pairs = set(map(tuple, prompts.tokens[sample:]))
    assert of_pairs.isdisjoint(map(tuple, prompts.tokens[:sample]))
    assert of_pairs & set(map(tuple, cells.filter(operator=operator)["tokens"]))
    assert len(prompts.pairs) == len(pairs)
    loaded, folder = checkpoint.from_settings(subject.settings), subject.path("theories")
    streams = np.empty((LAYERS, 3, len(prompts.tokens), 2 * HEAD_WIDTH))
    with residuals.read(loaded, prompts.tokens, prompts.positions, 7, folder, "") as stored:
        for level in range(LAYERS):
            for role in range(3):
                streams[level, role] = stored.at(level, role)
    for number, tokens in list(enumerate(prompts.tokens))[::9]:
        with torch.no_grad():
            passed = model(input_ids=torch.tensor([tokens]), output_hidden_states=True)
        states = passed.hidden_states[:-1]  # the last one is after the norm
        expected = torch.cat(states)[:, prompts.positions[number]]
        np.testing.assert_allclose(streams[:, :, number], expected, rtol=1e-3, atol=1e-4)


def _theories(subject: Subject) -> None:
    """Theories of neurons whose value logits are of tokens, not of results."""
    late_layers = pl.DataFrame({"subject": "s", "first_layer": 1, "layers": LAYERS})
    write_table(late_layers, subject.path("circuit/late_layers.parquet"))
    neuron = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32}
    labels = pl.DataFrame(schema=neuron | {"heuristic": pl.String})
    write_table(labels, subject.path("heuristics/labels.parquet"))
    predicate = {"predicate": pl.String, "bits": pl.Float32, "discovered": pl.Boolean}
    write_table(
        pl.DataFrame(schema=neuron | predicate), subject.path("heuristics/discovered.parquet")
    )
    spectra.main("s")
    theory_fits.main("s")
    fits, operator = subject.table("theories/theory_fits.parquet"), answered(subject)
    table = subject.table("store/prompts.parquet")
    assert set(fits["operator"]) == set(CALCULATE)
    for (name,), part in fits.group_by("operator"):
        known = table.filter(operator=name)["answer_token"].count() > 0
        assert (part["cells"] > 0).all() == known
        assert part["value"].is_null().all() == (not known)
    settings, store = load(TheoryFits), store_of(subject, operator)
    pairs = subject.table("circuit/pairs.parquet").filter(operator=operator)
    relabelled = theory_fits.Relabelled.draw(store, [1], settings, progress.bar())
    theorists = theory_fits.NeuronTheories(subject, store, [1], pairs, settings, relabelled)
    cells = theorists.cells
    late = subject.table("heuristics/spectra.parquet").filter(operator=operator, layer=1)
    shape = store.columns["result"].shape
    strongest = atoms.waves(late, shape, settings.waves, cells.op1, cells.op2)
    scaled = atoms.scaled(strongest, cells.training)
    np.testing.assert_array_equal(theorists.dictionaries["waves"].terms, scaled)
    means = []
    for part in theorists.blocks():
        means += [values for what, values in theorists.predictions(1, part) if what == "mean"]
    predicted = np.concatenate(means)
    activations = store.read(1, slice(None), slice(None)).astype(float)
    activations = activations[:, cells.op1, cells.op2]
    assert cells.training > 20
    mean = activations[:, : cells.training].mean(1, keepdims=True)
    np.testing.assert_allclose(predicted, np.broadcast_to(mean, predicted.shape), atol=1e-9)
    written, *_ = theorists.tally.written[1, "bag", settings.budgets[0], ""]
    assert len(written) == cells.held_out > 0
    held_out = slice(cells.training, cells.training + cells.held_out)
    order = pl.DataFrame({"op1": cells.op1[held_out], "op2": cells.op2[held_out]})
    own = table.filter(operator=operator).with_columns(pl.col("op1", "op2").cast(pl.Int64))
    tokens = order.cast(pl.Int64).join(own, on=["op1", "op2"], maintain_order="left")
    numbers = tokens["answer_token"].replace_strict(numbers_of_tokens(subject)).to_list()
    votes = subject.value_logits().read(1, slice(None), slice(None)).astype(np.float64)
    expected = (activations[:, held_out] * votes[:, numbers]).sum(0)
    np.testing.assert_allclose(written, expected, rtol=1e-6, atol=1e-9)
