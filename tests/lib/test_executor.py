"""The executor against the plain way: random tables of interventions on tiny random models of every architecture."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stages.lib.core import layered
from stages.lib.executor import executor, interventions, measuring, naive, pairs, runs
from stages.lib.executor import values as replacing
from stages.lib.executor.blocks import PassSizes
from stages.lib.model import architecture, checkpoint, float64, search
from stages.neurons import gradients
from tests.conftest import CONFIGS, random_model

ROLES = ["op1", "operator", "op2", "last"]
PLACES = [str(place) for place in range(8)]
WIDE = (
    "llama",
    "neox",
)  # in which an error of 1e-12 shows; the others are of the precision that large models have
EXACT = [
    (kind, torch.float64, 1e-12) if kind in WIDE else (kind, torch.float32, 1e-5)
    for kind in CONFIGS
]
LAYOUTS = {5: (1, 2, 3, 4), 8: (2, 3, 6, 7)}  # prompt length -> position of each role


def subject(kind: str, dtype: torch.dtype = torch.float32) -> checkpoint.Checkpoint:
    model = random_model(kind).to(dtype)
    if dtype == torch.float64:
        float64.widen(model)
    return checkpoint.Checkpoint(model, search.find(model))


def pair_table(seed: int, lengths: list[tuple[int, int]], shared: int = 0) -> pl.DataFrame:
    """Random pairs; lengths: of each clean prompt and of its counterfactual; shared: tokens that both begin with."""
    random = np.random.default_rng(seed)
    rows = []
    for number, (clean, other) in enumerate(lengths):
        tokens, answer = random.integers(3, 130, clean).tolist(), int(random.integers(3, 130))
        rows.append(
            {
                "pair": number, "operator": ["add", "multiply"][number % 2], "split": "discovery",
                "tokens": tokens, "answer_token": answer,
                "positions": dict(zip(ROLES, LAYOUTS[clean], strict=True)),
                "counterfactual_tokens": tokens[:shared] + random.integers(3, 130, other).tolist()[shared:],
                "counterfactual_answer_token": int(random.integers(3, 130)),
                "counterfactual_positions": dict(zip(ROLES, LAYOUTS[other], strict=True)),
            }
        )  # fmt: skip
    return pl.DataFrame(rows)


def random_means(loaded: checkpoint.Checkpoint, positions: int) -> dict[str, dict[str, np.ndarray]]:
    """Of the replacements mean and mean_add."""
    a, random = loaded.architecture, np.random.default_rng(7)
    shapes = {"neurons": (a.neurons,), "heads": (a.heads, a.head_width), "residual": (a.width,)}
    size = len(a.layers), positions
    return {
        whose: {name: random.standard_normal((*size, *shape)) for name, shape in shapes.items()}
        for whose in ("mean", "mean_add")
    }


@st.composite
def patch(
    draw: st.DrawFn, a: architecture.Architecture, single_length: bool, names: list[str]
) -> dict:
    component = draw(
        st.sampled_from(["mlp", "head", "neuron", "neuron", "coordinate", "residual", "edge"])
    )
    layer = draw(st.integers(0, len(a.layers) - 1))
    count = {"neuron": a.neurons, "coordinate": a.width, "head": a.heads, "edge": a.heads}.get(
        component
    )
    units = (
        draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, max_size=6, unique=True))
        if count
        else None
    )
    if component == "edge":
        query = draw(st.sampled_from(names))
        keys = ["earlier", *names[: names.index(query)]]
        return {
            "component": component,
            "layer": layer,
            "units": units,
            "position": query,
            "key_position": draw(st.sampled_from(keys)),
            "replacement": "zero",
        }
    position = draw(st.sampled_from([*names, "all"] if single_length else names))
    means = single_length and component != "coordinate"
    replacement = draw(
        st.sampled_from(
            ["zero", "mean", "mean_add", "counterfactual"] if means else ["zero", "counterfactual"]
        )
    )
    return {
        "component": component,
        "layer": layer,
        "units": units,
        "position": position,
        "key_position": None,
        "replacement": replacement,
    }


SCHEMA = {
    "intervention": pl.Int32, "operator": pl.String, "split": pl.String, "component": pl.String, "layer": pl.Int16,
    "units": pl.List(pl.Int32), "position": pl.String, "key_position": pl.String, "replacement": pl.String,
}  # fmt: skip


def intervention_table(patches: list[list[dict]], operators: list[str | None]) -> pl.DataFrame:
    none = {
        "component": "none",
        "layer": None,
        "units": None,
        "position": None,
        "key_position": None,
        "replacement": None,
    }
    rows = [
        {"intervention": number, "operator": operator, "split": None, **one}
        for number, (several, operator) in enumerate(zip(patches, operators, strict=True))
        for one in (several or [none])
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def measured(
    runner: executor.Executor, table: pl.DataFrame, rows: list[interventions.Intervention]
) -> dict[tuple[int, int], np.ndarray]:
    """(intervention, pair) -> the six measures."""
    found = {}
    for block in runner.plan(table, rows):
        for batch, values in runner.run(block):
            numbers = np.stack(
                [
                    values.answer_logit,
                    values.counterfactual_logit,
                    values.max_logit,
                    values.mean_logit,
                    values.predicted,
                ]
            )
            for i, one in enumerate(batch):
                for j, pair in enumerate(block.pairs.number):
                    assert (one.number, pair) not in found
                    found[one.number, pair] = numbers[:, i, j]
    return found


def expected(
    loaded: checkpoint.Checkpoint,
    table: pl.DataFrame,
    means,
    rows: list[interventions.Intervention],
) -> dict[tuple[int, int], np.ndarray]:
    """The same by the plain way, one intervention and one pair at a time, where both prompts have all the places named."""
    found = {}
    for row in table.iter_rows(named=True):
        [one_pair] = pairs.by_length(table.filter(pl.col("pair") == row["pair"]), 1)
        values = replacing.Values(loaded, one_pair, means)
        shortest = min(len(row["tokens"]), len(row["counterfactual_tokens"]))
        for one in rows:
            named = {name for p in one.patches for name in (p.position, p.key_position)} & set(
                PLACES
            )
            if one.operator in (None, row["operator"]) and all(
                int(place) < shortest for place in named
            ):
                values_of = measuring.measure(naive.logits(values, one)[None], one_pair)
                found[one.number, row["pair"]] = np.array(
                    [
                        x[0, 0]
                        for x in (
                            values_of.answer_logit,
                            values_of.counterfactual_logit,
                            values_of.max_logit,
                            values_of.mean_logit,
                            values_of.predicted,
                        )
                    ]
                )
    return found


@settings(
    max_examples=18, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize(("kind", "dtype", "tolerance"), EXACT)
def test_the_fast_path_is_the_plain_way(
    kind: str, dtype: torch.dtype, tolerance: float, data: st.DataObject
):
    loaded = subject(kind, dtype)
    a = loaded.architecture
    single = data.draw(st.booleans())
    lengths = (
        [(5, 5)] * 3
        if single
        else data.draw(
            st.lists(
                st.tuples(st.sampled_from([5, 8]), st.sampled_from([5, 8])), min_size=2, max_size=4
            )
        )
    )
    table = pair_table(
        data.draw(st.integers(0, 99)), lengths, shared=data.draw(st.sampled_from([0, 3]))
    )
    names = data.draw(st.sampled_from([ROLES, PLACES[: max(map(max, lengths))]]))
    one = patch(a, single, names)
    sweep = (
        st.lists(one, max_size=4)
        if data.draw(st.booleans())
        else st.lists(one, min_size=1, max_size=1)
    )
    drawn = data.draw(st.lists(sweep, min_size=1, max_size=6))
    operators = data.draw(
        st.lists(
            st.sampled_from([None, "add", "multiply"]), min_size=len(drawn), max_size=len(drawn)
        )
    )
    try:
        rows = interventions.read(intervention_table(drawn, operators), a, ROLES)
    except interventions.InterventionError as error:
        assume("twice" not in str(error))
        raise
    means = random_means(loaded, 5) if single else None
    runner = executor.Executor(
        loaded, means, rows=data.draw(st.sampled_from([1, 17, 1000])), memory=1 << 28
    )
    fast, plain = measured(runner, table, rows), expected(loaded, table, means, rows)
    assert fast.keys() == plain.keys()
    for key, values in plain.items():
        scale = np.abs(values[:4]).max()
        np.testing.assert_allclose(
            fast[key][:4], values[:4], rtol=0, atol=tolerance * scale, err_msg=str(key)
        )


@pytest.mark.parametrize(("kind", "dtype", "tolerance"), EXACT)
@pytest.mark.parametrize(
    ("component", "position"),
    [
        ("neuron", "last"),
        ("neuron", "op2"),
        ("coordinate", "last"),
        ("coordinate", "op2"),
        ("head", "last"),
        ("head", "op1"),
        ("mlp", "operator"),
    ],
)
def test_a_sweep_is_the_plain_way(
    kind: str, dtype: torch.dtype, tolerance: float, component: str, position: str
):
    """Every unit of every layer, one at a time: the case that restarts, shares prefixes and skips matrix products."""
    loaded = subject(kind, dtype)
    a, table = loaded.architecture, pair_table(3, [(5, 5), (8, 5), (5, 8), (5, 5)])
    counts = {
        "neuron": range(0, a.neurons, 7),
        "coordinate": range(0, a.width, 3),
        "head": range(a.heads),
    }
    units = [[u] for u in counts[component]] if component in counts else [None]
    patches = [
        [{"component": component, "layer": layer, "units": unit, "position": position, "key_position": None, "replacement": "counterfactual"}]
        for layer in range(len(a.layers)) for unit in units
    ]  # fmt: skip
    rows = interventions.read(intervention_table(patches, [None] * len(patches)), a, ROLES)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    assert (
        all(runner.entrances[:-1]) == all(runner.additive) == (kind != "olmo2")
    )  # which normalises behind its MLPs
    assert runner.entrances[-1]
    assert runner.attends == (kind != "gptj")  # which computes its attention itself
    fast, plain = measured(runner, table, rows), expected(loaded, table, None, rows)
    assert fast.keys() == plain.keys()
    for key, values in plain.items():
        np.testing.assert_allclose(
            fast[key][:4],
            values[:4],
            rtol=0,
            atol=tolerance * np.abs(values[:4]).max(),
            err_msg=str(key),
        )


def test_neither_the_order_of_rows_nor_the_size_of_a_pass_matters(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    loaded, table = subject(kind, torch.float64), pair_table(5, [(5, 5)] * 6)
    patches = [
        [{"component": "neuron", "layer": layer, "units": [unit, unit + 1], "position": "all", "key_position": None, "replacement": "mean"},
         {"component": "head", "layer": 1, "units": [unit % 4], "position": "last", "key_position": None, "replacement": "zero"}]
        for layer in (0, 1) for unit in range(5)
    ]  # fmt: skip
    patches += [
        [patches[0][0] | {"layer": 1, "units": [unit], "position": "last"}] for unit in range(5)
    ]
    listed = intervention_table(patches, [None] * len(patches))
    means = random_means(loaded, 5)
    results, usual, prompts = [], executor.measure, []
    monkeypatch.setattr(
        executor,
        "measure",
        lambda logits, pairs: (prompts.append(logits[..., 0].numel()), usual(logits, pairs))[1],
    )
    for rows, order, turned in (
        (5, listed, table),
        (60, listed.sample(fraction=1, shuffle=True, seed=1), table.reverse()),
        (5000, listed.reverse(), table),
    ):
        read = interventions.read(order, loaded.architecture, ROLES)
        results.append(
            measured(executor.Executor(loaded, means, rows=rows, memory=1 << 28), turned, read)
        )
    assert max(prompts) > 4
    prompts.clear()
    monkeypatch.setattr(PassSizes, "logits", lambda _: 4)  # as in a large vocabulary
    results.append(
        measured(executor.Executor(loaded, means, rows=5000, memory=1 << 28), table, read)
    )
    assert max(prompts) == 4
    for other in results[1:]:
        for key, values in results[0].items():
            np.testing.assert_allclose(other[key], values, rtol=1e-12, atol=1e-12)


FROZEN = {
    "component": "mlp",
    "layer": 1,
    "units": None,
    "position": "2",
    "key_position": None,
    "replacement": "counterfactual",
}
SENDER = {**FROZEN, "layer": 0, "position": "1", "replacement": "zero"}


SENDERS = {
    "an MLP": [SENDER],
    "a role": [{**SENDER, "position": "op1"}],
    "all positions": [{**SENDER, "position": "all"}],
    "what enters the layer": [{**SENDER, "layer": 1, "component": "residual"}],
    "the layer's heads": [{**SENDER, "layer": 1, "component": "head", "position": "2"}],
    "the layer's edges": [
        {**SENDER, "layer": 1, "component": "edge", "position": "2", "key_position": "earlier"}
    ],
    "a head and an MLP": [
        {**SENDER, "component": "head", "units": [1]},
        {**SENDER, "position": "2"},
    ],
    "one behind, one in front": [{**SENDER, "position": "4"}, SENDER],
}


@pytest.mark.parametrize("senders", SENDERS)
def test_a_path_is_patched_by_what_freezes_the_others(senders: str):
    """The MLP is given its clean value behind a sender that would have changed it; both prompts begin alike, so its value is in both."""
    loaded, table = subject("llama", torch.float64), pair_table(4, [(5, 5), (8, 5)], shared=3)
    rows = interventions.read(
        intervention_table([SENDERS[senders], [*SENDERS[senders], FROZEN]], [None] * 2),
        loaded.architecture,
        ROLES,
    )
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    fast, plain = measured(runner, table, rows), expected(loaded, table, None, rows)
    for key, values in plain.items():
        np.testing.assert_allclose(fast[key], values, rtol=1e-12, atol=1e-12, err_msg=str(key))
    assert not np.allclose(plain[0, 0], plain[1, 0], rtol=1e-9)


@pytest.mark.parametrize("kind", ["llama", "neox"])
def test_patches_that_nothing_reads_are_left_out(kind: str):
    """At a place: what is put in is there already, or no later token looks at it."""
    loaded, table = subject(kind, torch.float64), pair_table(4, [(5, 5), (8, 5)], shared=3)
    last = len(loaded.architecture.layers) - 1
    behind = {**SENDER, "layer": 1, "position": "3"}
    idle = [
        [FROZEN],
        [FROZEN, {**FROZEN, "layer": 0}],
        [{**SENDER, "layer": last}],
        [{**SENDER, "layer": last}, {**FROZEN, "layer": last}],
    ]
    rows = interventions.read(
        intervention_table([*idle, [FROZEN, behind]], [None] * 5), loaded.architecture, ROLES
    )
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    kept = {
        one.number: one.patches for block in runner.plan(table, rows) for one in block.interventions
    }
    assert kept == dict.fromkeys(range(len(idle)), ()) | {len(idle): (rows[-1].patches[1],)}
    fast, plain = measured(runner, table, rows), expected(loaded, table, None, rows)
    for key, values in plain.items():
        np.testing.assert_allclose(fast[key], values, rtol=1e-12, atol=1e-12, err_msg=str(key))


def test_an_intervention_on_one_pair_says_what_it_says_on_all(kind: str):
    loaded, table = subject(kind, torch.float64), pair_table(7, [(5, 5), (8, 8), (5, 5)])
    patches = [
        [
            {
                "component": "neuron",
                "layer": 1,
                "units": [n],
                "position": "last",
                "key_position": None,
                "replacement": "zero",
            }
        ]
        for n in range(4)
    ]
    listed, runner = (
        intervention_table(patches, [None] * 4),
        executor.Executor(loaded, None, rows=400, memory=1 << 28),
    )
    whole = measured(runner, table, interventions.read(listed, loaded.architecture, ROLES))
    chosen = pl.Series("pair", [*table["pair"][:2], None, table["pair"][2]], pl.Int32)
    single = measured(
        runner, table, interventions.read(listed.with_columns(chosen), loaded.architecture, ROLES)
    )
    assert set(single) == {
        (i, pair) for i, only in enumerate(chosen) for pair in table["pair"] if only in (None, pair)
    }
    for key, values in single.items():
        np.testing.assert_allclose(values, whole[key], rtol=1e-12, atol=1e-12)


def test_no_patch_is_the_clean_run(kind: str):
    loaded, table = subject(kind), pair_table(6, [(5, 5), (8, 8)])
    rows = interventions.read(intervention_table([[]], [None]), loaded.architecture, ROLES)
    found = measured(executor.Executor(loaded, None, rows=10, memory=1 << 28), table, rows)
    for number, tokens in enumerate(table["tokens"].to_list()):
        logits = loaded.model(input_ids=torch.tensor([tokens])).logits[0, -1]
        answer, other = table["answer_token"][number], table["counterfactual_answer_token"][number]
        expected_values = torch.stack(
            [logits[answer], logits[other], logits.max(), logits.mean(), logits.argmax()]
        )
        np.testing.assert_allclose(found[0, number], expected_values, rtol=1e-5, atol=1e-5)


def test_attribution_is_the_slope_of_the_logit_effect(kind: str):
    """Against a difference quotient: the activation moved a thousandth of the way to its counterfactual value."""
    loaded, table = subject(kind, torch.float64), pair_table(8, [(5, 5), (5, 5)])
    [group] = pairs.by_length(table, 9)
    values, step = replacing.Values(loaded, group, None), 1e-4
    sites = [(0, "op1"), (1, "last")]
    found = gradients.attributions(values, sites)
    rows = torch.arange(2)
    for layer, role in sites:
        at, change = (
            values.positions[role],
            values.counterfactual.neurons[layer] - values.clean.neurons[layer],
        )
        for neuron in (0, 5, 40):
            effects = []
            for sign in (-1, 1):

                def nudge(
                    x: torch.Tensor, sign=sign, neuron=neuron, at=at, change=change
                ) -> torch.Tensor:
                    x = x.clone()
                    x[rows, at, neuron] += sign * step * change[rows, at, neuron]
                    return x

                with architecture.patched(loaded.architecture.layers[layer].mlp_out, nudge):
                    logits = loaded.model(input_ids=values.clean.tokens).logits[:, -1]
                effects.append(
                    (logits[rows, group.counterfactual_answers] - logits[rows, group.answers]) / 2
                )
            torch.testing.assert_close(
                found[layer, role][:, neuron],
                (effects[1] - effects[0]) / (2 * step),
                rtol=1e-5,
                atol=1e-7,
            )


def test_means_are_pooled_with_equal_weight_or_an_operators_own(tmp_path: Path):
    path, random = tmp_path / "means.h5", np.random.default_rng(0)
    arrays = {kind: random.normal(size=(2, 1, 3, 4)).astype(np.float32) for kind in runs.KINDS}
    layered.write_array(path, arrays, {"operators": "add, divide"})
    means = runs.read_means(path)
    assert set(means) == {"mean", "mean_add", "mean_divide"} <= set(interventions.MEANS)
    for kind, array in arrays.items():
        np.testing.assert_allclose(means["mean"][kind], (array[0] + array[1]) / 2, rtol=1e-6)
        np.testing.assert_array_equal(means["mean_divide"][kind], array[1])
    runs.check_operators(path, [None, "divide"])
    with pytest.raises(
        interventions.InterventionError,
        match=r"^there is no mean of multiply in .*, only of add, divide; replace by mean",
    ):
        runs.check_operators(path, ["multiply"])
