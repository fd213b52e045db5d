"""Compare the executor with plain forward passes: random tables, models of every architecture."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stages.lib.core import hdf5_store
from stages.lib.executor import executor, interventions, measuring, naive, pairs, runs
from stages.lib.executor import values as replacing
from stages.lib.executor.blocks import PassSizes
from stages.lib.executor.external_values import Given
from stages.lib.model import architecture, checkpoint, float64, search
from stages.neurons import gradients
from tests.conftest import CONFIGS, random_model

Results = dict[tuple[int, int], np.ndarray]  # (intervention, pair) -> its measures

ROLES = ["op1", "operator", "op2", "last"]
PLACES = list(map(str, range(8)))
# These are compared in float64, in which an error of 1e-12 shows; the others in float32.
WIDE = ("llama", "neox")
EXACT = [
    (kind, torch.float64, 1e-12) if kind in WIDE else (kind, torch.float32, 1e-5)
    for kind in CONFIGS
]
# prompt length -> position of each role
LAYOUTS = {5: (1, 2, 3, 4), 8: (2, 3, 6, 7), 14: (10, 11, 12, 13)}
MEASURES = ("answer_logit", "counterfactual_logit", "max_logit", "mean_logit", "predicted")
SCHEMA = {
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


def subject(kind: str, dtype: torch.dtype = torch.float32) -> checkpoint.Checkpoint:
    """Return a tiny random model of an architecture."""
    model = random_model(kind).to(dtype)
    if dtype == torch.float64:
        float64.widen(model)
    return checkpoint.Checkpoint(model, search.find(model))


def pair_table(seed: int, lengths: list[tuple[int, int]], shared: int = 0) -> pl.DataFrame:
    """Return random pairs.

    lengths: of each clean prompt and its counterfactual; shared: tokens that both begin with.
    """
    random = np.random.default_rng(seed)
    rows = []
    for number, (clean, other) in enumerate(lengths):
        tokens = random.integers(3, 130, clean).tolist()
        answer, other_answer = random.integers(3, 130, 2).tolist()
        rows.append(
            {
                "pair": number,
                "operator": ["add", "multiply"][number % 2],
                "split": "discovery",
                "tokens": tokens,
                "answer_token": answer,
                "positions": dict(zip(ROLES, LAYOUTS[clean], strict=True)),
                "counterfactual_tokens": tokens[:shared]
                + random.integers(3, 130, other).tolist()[shared:],
                "counterfactual_answer_token": other_answer,
                "counterfactual_positions": dict(zip(ROLES, LAYOUTS[other], strict=True)),
            }
        )
    return pl.DataFrame(rows)


def random_means(loaded: checkpoint.Checkpoint, positions: int) -> dict[str, dict[str, np.ndarray]]:
    """Return random means for the replacements mean and mean_add."""
    a, random = loaded.architecture, np.random.default_rng(7)
    size, means = (len(a.layers), positions), {}
    for replacement in ("mean", "mean_add"):
        means[replacement] = {
            "neurons": random.standard_normal((*size, a.neurons)),
            "heads": random.standard_normal((*size, a.heads, a.head_width)),
            "residual": random.standard_normal((*size, a.width)),
        }
    return means


def patch_row(
    component: str,
    layer: int | None,
    units: list[int] | None = None,
    position: str | None = "last",
    replacement: str | None = "zero",
    key_position: str | None = None,
) -> dict:
    """Return a patch's columns of a table of interventions."""
    return {
        "component": component,
        "layer": layer,
        "units": units,
        "position": position,
        "key_position": key_position,
        "replacement": replacement,
    }


@st.composite
def patch(
    draw: st.DrawFn, a: architecture.Architecture, single_length: bool, names: list[str]
) -> dict:
    """Draw a patch; single_length: whether all prompts have one length; names: of positions."""
    components = ["mlp", "head", "neuron", "neuron", "coordinate", "residual", "edge"]
    component = draw(st.sampled_from(components))
    layer = draw(st.integers(0, len(a.layers) - 1))
    counts = {"neuron": a.neurons, "coordinate": a.width, "head": a.heads, "edge": a.heads}
    units = None
    if component in counts:
        numbers = st.integers(0, counts[component] - 1)
        units = draw(st.none() | st.lists(numbers, min_size=1, max_size=6, unique=True))
    if component == "edge":
        query = draw(st.sampled_from(names))
        key = draw(st.sampled_from(["earlier", *names[: names.index(query)]]))
        return patch_row(component, layer, units, query, "zero", key)
    replacements = ["zero", "counterfactual"]
    if single_length:
        names = [*names, "all"]
        if component != "coordinate":
            replacements += ["mean", "mean_add"]
    position, replacement = draw(st.sampled_from(names)), draw(st.sampled_from(replacements))
    return patch_row(component, layer, units, position, replacement)


def intervention_table(
    patches: list[list[dict]], operators: list[str | None] | None = None
) -> pl.DataFrame:
    """Return a table of interventions, one for each list of patches; operators: None for any."""
    none = patch_row("none", None, None, None, None)
    rows = []
    for number, together in enumerate(patches):
        operator = operators[number] if operators else None
        for row in together or [none]:
            rows.append({"intervention": number, "operator": operator, "split": None, **row})
    return pl.DataFrame(rows, schema=SCHEMA)


def measured(
    runner: executor.Executor, table: pl.DataFrame, rows: list[interventions.Intervention]
) -> Results:
    """Return the executor's MEASURES; each intervention and pair must be measured once."""
    results: Results = {}
    for block in runner.plan(table, rows):
        for batch, values in runner.run(block):
            numbers = np.stack([getattr(values, name) for name in MEASURES])
            for i, intervention in enumerate(batch):
                for j, pair in enumerate(block.pairs.number):
                    assert (intervention.number, pair) not in results
                    results[intervention.number, pair] = numbers[:, i, j]
    return results


def expected(
    loaded: checkpoint.Checkpoint,
    table: pl.DataFrame,
    means,
    rows: list[interventions.Intervention],
    store: Given | None = None,
    together: int = 1,
) -> Results:
    """Return MEASURES by plain forward passes, one intervention at a time.

    together: how many pairs of equal lengths share a pass. Pairs that lack a location that an
    intervention names have no results.
    """
    results: Results = {}
    by_pair = {row["pair"]: row for row in table.rows(named=True)}
    for group in pairs.by_length(table, together):
        values = replacing.Values(loaded, group, means, given=store)
        some = by_pair[group.number[0]]
        shortest = min(len(some["tokens"]), len(some["counterfactual_tokens"]))
        for intervention in rows:
            if largest_place(intervention) >= shortest:
                continue
            measures = measuring.measure(naive.logits(values, intervention)[None], group)
            for j, number in enumerate(group.number):
                if intervention.operator in (None, by_pair[number]["operator"]):
                    numbers = np.array([getattr(measures, name)[0, j] for name in MEASURES])
                    results[intervention.number, number] = numbers
    return results


def largest_place(intervention: interventions.Intervention) -> int:
    """Return the largest location that an intervention names, -1 if it names none."""
    positions = {p.position for p in intervention.patches}
    positions |= {str(p.key_position) for p in intervention.patches}
    return max(map(int, positions & {*PLACES}), default=-1)


def check_same(results: Results, others: Results, tolerance: float) -> None:
    """Assert that logits agree to a tolerance, relative to the largest of each run."""
    assert results
    assert results.keys() == others.keys()
    for key, values in others.items():
        allowed = tolerance * np.abs(values[:4]).max()
        np.testing.assert_allclose(results[key][:4], values[:4], 0, allowed, err_msg=str(key))


def of_circuits(a: architecture.Architecture) -> list[list[dict]]:
    """Return interventions at all positions, as circuits have them."""
    heads = [patch_row("head", layer, None, "all", "mean") for layer in range(len(a.layers))]
    return [
        heads,
        heads[1:],
        [patch_row("head", 1, [0, 2], "all", "zero"), patch_row("mlp", 0, None, "all", "mean")],
        [patch_row("neuron", 1, [3, 5, 7], "all", "mean_add")],
        [patch_row("coordinate", 0, [1, 4], "all", "zero")],
        [patch_row("residual", 1, None, "all", "mean"), patch_row("head", 1, [1], "all", "mean")],
        [*heads, patch_row("neuron", 1, [2, 4], "op1", "counterfactual")],
        [*heads, patch_row("edge", 0, [1], "last", "zero", "op1")],
        [heads[1], patch_row("neuron", 0, [2], "op2", "zero")],
    ]


@pytest.mark.parametrize(("kind", "dtype", "tolerance"), EXACT)
def test_the_tokens_that_all_prompts_begin_with_are_computed_once(
    kind: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
):
    loaded, begin = subject(kind, dtype), list(range(20, 30))
    table = pair_table(3, [(14, 14)] * 4)
    table = table.with_columns(tokens=pl.Series([begin + list(t[10:]) for t in table["tokens"]]))
    rows = interventions.read(
        intervention_table(of_circuits(loaded.architecture)), loaded.architecture, ROLES
    )
    means = random_means(loaded, 14)
    runner = executor.Executor(loaded, means, rows=600, memory=1 << 28)
    passes = set()
    descend = executor.Executor._descend

    def watched(self, values, batch, start, front):
        passes.add((*values.clean.tokens.shape, start, front is not None))
        return descend(self, values, batch, start, front)

    monkeypatch.setattr(executor.Executor, "_descend", watched)
    results = measured(runner, table, rows)
    # 10 positions of one prompt, then the rest of four prompts of 14 tokens
    assert passes == {(1, 10, 0, True), (4, 14, 10, True)}
    check_same(results, expected(loaded, table, means, rows), tolerance)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize(("kind", "dtype", "tolerance"), EXACT)
def test_random_interventions_agree_with_plain_forward_passes(
    kind: str, dtype: torch.dtype, tolerance: float, data: st.DataObject
):
    loaded = subject(kind, dtype)
    a = loaded.architecture
    single = data.draw(st.booleans())
    lengths = [(5, 5)] * 3
    if not single:
        length = st.sampled_from([5, 8])
        lengths = data.draw(st.lists(st.tuples(length, length), min_size=2, max_size=4))
    shared = data.draw(st.sampled_from([0, 3]))
    table = pair_table(data.draw(st.integers(0, 99)), lengths, shared=shared)
    names = data.draw(st.sampled_from([ROLES, PLACES[: max(map(max, lengths))]]))
    row = patch(a, single, names)
    several = st.lists(row, max_size=4)
    if data.draw(st.booleans()):
        several = st.lists(row, min_size=1, max_size=1)  # as in a sweep
    drawn = data.draw(st.lists(several, min_size=1, max_size=6))
    size = len(drawn)
    operator = st.sampled_from([None, "add", "multiply"])
    operators = data.draw(st.lists(operator, min_size=size, max_size=size))
    try:
        rows = interventions.read(intervention_table(drawn, operators), a, ROLES)
    except interventions.InterventionError as error:
        assume("twice" not in str(error))
        raise
    means = random_means(loaded, 5) if single else None
    pass_rows = data.draw(st.sampled_from([1, 17, 1000]))
    runner = executor.Executor(loaded, means, rows=pass_rows, memory=1 << 28)
    plain = expected(loaded, table, means, rows)
    assume(plain)
    check_same(measured(runner, table, rows), plain, tolerance)


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
def test_a_sweep_agrees_with_plain_forward_passes(
    kind: str, dtype: torch.dtype, tolerance: float, component: str, position: str
):
    """A sweep restarts, shares prefixes and skips matrix products."""
    loaded = subject(kind, dtype)
    a, table = loaded.architecture, pair_table(3, [(5, 5), (8, 5), (5, 8), (5, 5)])
    counts = {
        "neuron": range(0, a.neurons, 7),
        "coordinate": range(0, a.width, 3),
        "head": range(a.heads),
    }
    units = [[unit] for unit in counts.get(component, [])] or [None]
    patches = [
        [patch_row(component, layer, unit, position, "counterfactual")]
        for layer in range(len(a.layers))
        for unit in units
    ]
    rows = interventions.read(intervention_table(patches), a, ROLES)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    # olmo2 normalises after its MLPs; gptj computes its attention itself.
    assert all(runner.entrances[:-1]) == all(runner.shortcuts.additive) == (kind != "olmo2")
    assert runner.entrances[-1]
    assert runner.shortcuts.attends == (kind != "gptj")
    plain = expected(loaded, table, None, rows, together=len(table))
    check_same(measured(runner, table, rows), plain, tolerance)


def test_neither_the_order_of_rows_nor_the_size_of_a_pass_matters(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    loaded, table = subject(kind, torch.float64), pair_table(5, [(5, 5)] * 6)
    patches, single = [], []
    for layer in (0, 1):
        for unit in range(5):
            neurons = patch_row("neuron", layer, [unit, unit + 1], "all", "mean")
            patches.append([neurons, patch_row("head", 1, [unit % 4])])
            single.append([patch_row("neuron", 1, [unit], "last", "mean")])
    ordered = intervention_table(patches + single[:5])
    shuffled = ordered.sample(fraction=1, shuffle=True, seed=1)
    means, usual, prompts = random_means(loaded, 5), executor.measure, list[int]()

    def counted(logits: torch.Tensor, pairs: pairs.PromptPairs) -> measuring.Measured:
        prompts.append(logits[..., 0].numel())
        return usual(logits, pairs)

    monkeypatch.setattr(executor, "measure", counted)

    def results(listed: pl.DataFrame, size: int, pairs: pl.DataFrame) -> Results:
        rows = interventions.read(listed, loaded.architecture, ROLES)
        return measured(executor.Executor(loaded, means, rows=size, memory=1 << 28), pairs, rows)

    first = results(ordered, 5, table)
    others = [results(shuffled, 60, table.reverse()), results(ordered.reverse(), 5000, table)]
    assert max(prompts) > 4
    prompts.clear()
    monkeypatch.setattr(PassSizes, "logits", lambda _: 4)  # as in a large vocabulary
    others.append(results(ordered.reverse(), 5000, table))
    assert max(prompts) == 4
    for other in others:
        check_same(other, first, 1e-12)


FROZEN = patch_row("mlp", 1, None, "2", "counterfactual")
SENDER = patch_row("mlp", 0, None, "1")
SENDERS = {
    "an MLP": [SENDER],
    "a role": [{**SENDER, "position": "op1"}],
    "all positions": [{**SENDER, "position": "all"}],
    "what enters the layer": [patch_row("residual", 1, None, "1")],
    "the layer's heads": [patch_row("head", 1, None, "2")],
    "the layer's edges": [patch_row("edge", 1, None, "2", key_position="earlier")],
    "a head and an MLP": [patch_row("head", 0, [1], "1"), {**SENDER, "position": "2"}],
    "one later, one earlier": [{**SENDER, "position": "4"}, SENDER],
}


@pytest.mark.parametrize("senders", SENDERS)
def test_a_path_is_patched_by_freezing_the_others(senders: str):
    """A later MLP is set to its clean value, which both prompts share since they begin alike."""
    loaded, table = subject("llama", torch.float64), pair_table(4, [(5, 5), (8, 5)], shared=3)
    listed = intervention_table([SENDERS[senders], [*SENDERS[senders], FROZEN]])
    rows = interventions.read(listed, loaded.architecture, ROLES)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    plain = expected(loaded, table, None, rows)
    check_same(measured(runner, table, rows), plain, 1e-12)
    assert not np.allclose(plain[0, 0], plain[1, 0], rtol=1e-9)


@pytest.mark.parametrize("kind", ["llama", "neox"])
def test_patches_that_nothing_reads_are_left_out(kind: str):
    """They write what is there already, or no later token reads what they write."""
    loaded, table = subject(kind, torch.float64), pair_table(4, [(5, 5), (8, 5)], shared=3)
    last = len(loaded.architecture.layers) - 1
    later = patch_row("mlp", 1, None, "3")
    idle = [
        [FROZEN],
        [FROZEN, {**FROZEN, "layer": 0}],
        [{**SENDER, "layer": last}],
        [{**SENDER, "layer": last}, {**FROZEN, "layer": last}],
    ]
    listed = intervention_table([*idle, [FROZEN, later]])
    rows = interventions.read(listed, loaded.architecture, ROLES)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    kept: dict[int, tuple] = {}
    for block in runner.plan(table, rows):
        kept |= {intervention.number: intervention.patches for intervention in block.interventions}
    assert kept == dict.fromkeys(range(len(idle)), ()) | {len(idle): (rows[-1].patches[1],)}
    check_same(measured(runner, table, rows), expected(loaded, table, None, rows), 1e-12)


def test_an_intervention_on_one_pair_gives_what_it_gives_on_all(kind: str):
    loaded, table = subject(kind, torch.float64), pair_table(7, [(5, 5), (8, 8), (5, 5)])
    listed = intervention_table([[patch_row("neuron", 1, [n])] for n in range(4)])
    runner = executor.Executor(loaded, None, rows=400, memory=1 << 28)
    whole = measured(runner, table, interventions.read(listed, loaded.architecture, ROLES))
    named = listed.with_columns(pair=pl.Series([0, 1, None, 2], dtype=pl.Int32))
    single = measured(runner, table, interventions.read(named, loaded.architecture, ROLES))
    keys = [(0, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 2)]
    check_same(single, {key: whole[key] for key in keys}, 1e-12)


def test_no_patch_is_the_clean_run(kind: str):
    loaded, table = subject(kind), pair_table(6, [(5, 5), (8, 8)])
    rows = interventions.read(intervention_table([[]]), loaded.architecture, ROLES)
    results = measured(executor.Executor(loaded, None, rows=10, memory=1 << 28), table, rows)
    assert len(results) == 2
    for number, row in enumerate(table.iter_rows(named=True)):
        logits = loaded.model(input_ids=torch.tensor([row["tokens"]])).logits[0, -1]
        answers = logits[[row["answer_token"], row["counterfactual_answer_token"]]]
        more = torch.stack([logits.max(), logits.mean(), logits.argmax()])
        plain = torch.cat([answers, more])
        np.testing.assert_allclose(results[0, number], plain, rtol=1e-5, atol=1e-5)


def test_attribution_is_the_slope_of_the_logit_effect(kind: str):
    """The slope is a difference quotient: a ten-thousandth of the way to the counterfactual."""
    loaded, table = subject(kind, torch.float64), pair_table(8, [(5, 5), (5, 5)])
    [group] = pairs.by_length(table, 9)
    values, step = replacing.Values(loaded, group, None), 1e-4
    slopes = gradients.attributions(values, [(0, "op1"), (1, "last")])
    assert len(slopes) == 2
    for (layer, role), attributions in slopes.items():
        for neuron in (0, 5, 40):
            lower, upper = (nudged(values, layer, role, neuron, x) for x in (-step, step))
            slope = (upper - lower) / (2 * step)
            torch.testing.assert_close(attributions[:, neuron], slope, rtol=1e-5, atol=1e-7)


def nudged(
    values: replacing.Values, layer: int, role: str, neuron: int, step: float
) -> torch.Tensor:
    """Return half the answers' logit difference (pairs,) with one activation moved.

    step: share of the way from the clean to the counterfactual activation.
    """
    clean, other = values.clean.neurons[layer], values.counterfactual.neurons[layer]
    at = values.prompts, values.positions[role], neuron

    def nudge(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[at] += step * (other[at] - clean[at])
        return x

    with architecture.patched(values.architecture.layers[layer].mlp_out, nudge):
        logits = values.checkpoint.model(input_ids=values.clean.tokens).logits[:, -1]
    group = values.pairs
    answers = logits[values.prompts, group.answers]
    return (logits[values.prompts, group.counterfactual_answers] - answers) / 2


def test_means_are_pooled_with_equal_weight_or_of_one_operator(tmp_path: Path):
    path, random = tmp_path / "means.h5", np.random.default_rng(0)
    shape = (2, 1, 3, 4)  # operators, layers, positions, width
    arrays = {kind: random.normal(size=shape).astype(np.float32) for kind in runs.KINDS}
    hdf5_store.write_array(path, arrays, {"operators": "add, divide"})
    means = runs.read_means(path)
    assert set(means) == {"mean", "mean_add", "mean_divide"} <= set(interventions.MEANS)
    for kind, array in arrays.items():
        np.testing.assert_allclose(means["mean"][kind], (array[0] + array[1]) / 2, rtol=1e-6)
        np.testing.assert_array_equal(means["mean_divide"][kind], array[1])
    runs.check_operators(path, [None, "divide"])
    message = r"^there is no mean of multiply in .*, only of add, divide; replace by mean"
    with pytest.raises(interventions.InterventionError, match=message):
        runs.check_operators(path, ["multiply"])
