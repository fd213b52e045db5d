"""Check positions given as locations, in prompts of several lengths, and other tables of pairs."""

from itertools import chain, product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from stages.lib.core import hdf5_store
from stages.lib.executor import blocks as planning
from stages.lib.executor import executor, external_values, interventions, parity_check, runs
from stages.lib.executor.clean import stream_of
from stages.lib.model import checkpoint
from tests.lib.test_executor import (
    EXACT,
    LAYOUTS,
    PLACES,
    ROLES,
    check_same,
    expected,
    intervention_table,
    measured,
    pair_table,
    patch_row,
    subject,
)
from tests.micro import SHIPPED, alone

LENGTHS = [(5, 5), (8, 8), (8, 5), (5, 8), (8, 8)]


def patches(
    component: str, positions: list[str], units: list[int] | None = None, layers: int = 2
) -> list[list[dict]]:
    """Return one patch for each layer and position: the component's counterfactual value."""
    return [
        [patch_row(component, layer, units, position, "counterfactual")]
        for layer in range(layers)
        for position in positions
    ]


def read(
    loaded: checkpoint.Checkpoint, listed: list[list[dict]]
) -> list[interventions.Intervention]:
    return interventions.read(intervention_table(listed), loaded.architecture, ROLES)


def by_hand(
    loaded: checkpoint.Checkpoint, row: dict, patches: list[interventions.Patch]
) -> torch.Tensor:
    """Return last-position logits (patches, vocabulary) with a part's output from the other prompt.

    The parts are those of one layer: its attention block, MLP, or coordinates of the MLP's output.
    One pass runs a copy of the prompt for each patch, which replaces the output at its location.
    """
    layer = loaded.architecture.layers[patches[0].layer]
    module = layer.mixer if patches[0].component == "head" else layer.mlp
    outputs: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, __: tuple, out: torch.Tensor | tuple) -> None:
        outputs.append(stream_of(out))

    def replace(_: torch.nn.Module, __: tuple, out: torch.Tensor | tuple) -> torch.Tensor | tuple:
        changed = stream_of(out).clone()
        for copy, patch in enumerate(patches):
            units, at = patch.units, int(patch.position)
            coordinates = slice(None) if units is None else np.frombuffer(units, np.int32).tolist()
            changed[copy, at, coordinates] = outputs[0][0, at, coordinates]
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    clean = [row["tokens"]] * len(patches)
    for hook, tokens in ((keep, [row["counterfactual_tokens"]]), (replace, clean)):
        handle = module.register_forward_hook(hook)
        logits = loaded.model(input_ids=torch.tensor(tokens), use_cache=False).logits[:, -1]
        handle.remove()
    return logits


@pytest.mark.parametrize(("kind", "dtype", "tolerance"), EXACT)
@pytest.mark.parametrize(
    ("component", "units"),
    [
        ("mlp", None),
        ("head", None),
        ("coordinate", None),
        ("coordinate", [3]),
        ("coordinate", [30, 0]),
    ],
)
def test_patches_at_every_location_agree_with_hooks(
    kind: str, dtype: torch.dtype, tolerance: float, component: str, units: list[int] | None
):
    loaded, table = subject(kind, dtype), pair_table(11, LENGTHS)
    wanted = read(loaded, patches(component, PLACES, units, len(loaded.architecture.layers)))
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    parity_check.check(runner, runner.plan(table, wanted))
    plain = {}
    for layer, row in product(range(len(loaded.architecture.layers)), table.rows(named=True)):
        own = [i for i in wanted if i.patches[0].layer == layer]
        own = [i for i in own if int(i.patches[0].position) < min(LENGTHS[row["pair"]])]
        patched = by_hand(loaded, row, [i.patches[0] for i in own])
        for intervention, logits in zip(own, patched, strict=True):
            answers = logits[[row["answer_token"], row["counterfactual_answer_token"]]]
            numbers = np.array([*answers, logits.max(), logits.mean()])
            plain[intervention.number, row["pair"]] = numbers
    check_same(measured(runner, table, wanted), plain, tolerance)


@pytest.mark.parametrize(
    ("component", "units"),
    [
        ("mlp", None),
        ("head", None),
        ("head", [1]),
        ("neuron", [5]),
        ("coordinate", [5]),
        ("residual", None),
    ],
)
def test_a_location_gives_what_its_role_gives(kind: str, component: str, units: list[int] | None):
    """The bits are equal, since it is the same work.

    Where nothing reads what the last layer writes, a location gives the clean run.
    """
    loaded, table = subject(kind), pair_table(12, [(8, 8)] * 4)
    runner = executor.Executor(loaded, None, rows=200, memory=1 << 28)
    places = list(map(str, LAYOUTS[8]))
    wanted = read(loaded, patches(component, places, units))
    by_place = measured(runner, table, wanted)
    by_role = measured(runner, table, read(loaded, patches(component, ROLES, units)))
    clean = measured(runner, table, read(loaded, [[]]))
    check_same(by_place, by_role, 1e-5)
    last = len(loaded.architecture.layers) - 1
    for (number, pair), values in by_role.items():
        [patch] = wanted[number].patches
        is_read = patch.layer < last or component == "residual" or patch.position == places[-1]
        same = values if is_read else clean[0, pair]
        np.testing.assert_array_equal(by_place[number, pair], same)


def test_what_both_prompts_share_is_never_run_twice(kind: str):
    """Patches before location 3, where both prompts differ first, give the bits of the clean run.

    They have no block of their own.
    """
    loaded, table = subject(kind), pair_table(16, [(8, 8)] * 4, shared=3)
    for clean, other in table.select("tokens", "counterfactual_tokens").iter_rows():
        assert clean[3] != other[3]
    runner = executor.Executor(loaded, None, rows=200, memory=1 << 28)
    wanted = read(loaded, [[], *patches("mlp", PLACES)])
    fast = measured(runner, table, wanted)
    check_same(fast, expected(loaded, table, None, wanted), 1e-5)
    shared = [i.number for i in wanted[1:] if int(i.patches[0].position) < 3]
    assert len(shared) == 6
    for number, pair in product(shared, range(4)):
        np.testing.assert_array_equal(fast[number, pair], fast[0, pair])
    unpatched = set()
    for block in runner.plan(table, wanted):
        unpatched |= {i.number for i in block.interventions if not i.patches}
    assert {0, *shared} <= unpatched


def layers_of(blocks: list[planning.Block]) -> list[list[int]]:
    return [sorted({i.patches[0].layer for i in block.interventions}) for block in blocks]


COMPONENTS = [("mlp", None), ("head", None), ("head", [0])]


@pytest.mark.parametrize(("rows", "layers"), [(200, [[0, 1, 2]]), (32, [[0, 1], [2]])])
def test_layers_of_a_large_model_share_a_pass(
    rows: int, layers: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    """A pass reads every weight, so a few runs of each layer are one block: here 3 on 4 pairs."""
    loaded, table = subject("llama", torch.float64), pair_table(16, [(8, 8)] * 4)
    runner = executor.Executor(loaded, None, rows=rows, memory=1 << 28)
    listed = [patches(name, ["7"], units, 3) for name, units in COMPONENTS]
    wanted = read(loaded, [*chain.from_iterable(listed)])
    assert layers_of(runner.plan(table, wanted)) == [[0], [1], [2]]
    monkeypatch.setattr(planning, "CACHED", 0)
    assert layers_of(runner.plan(table, wanted)) == layers
    check_same(measured(runner, table, wanted), expected(loaded, table, None, wanted), 1e-12)


def test_an_intervention_runs_on_pairs_that_have_all_its_locations(kind: str):
    loaded, table = subject(kind), pair_table(13, LENGTHS)
    [first], [head], [second] = (
        patches(component, [position], layers=1)[0]
        for component, position in (("mlp", "1"), ("head", "6"), ("mlp", "2"))
    )
    edge = patch_row("edge", 0, None, "last", key_position="5")
    other_edge = patch_row("edge", 0, None, "7", key_position="3")
    wanted = read(loaded, [[first], [first, head, second], [edge], [other_edge], []])
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    fast = measured(runner, table, wanted)
    every, long = [0, 1, 2, 3, 4], [1, 4]
    for number, pairs in enumerate((every, long, long, long, every)):
        assert sorted(pair for other, pair in fast if other == number) == pairs
    check_same(fast, expected(loaded, table, None, wanted), 1e-5)


def test_an_intervention_without_a_pair_to_run_on_is_no_error():
    loaded, table = subject("llama"), pair_table(14, LENGTHS)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    blocks = runner.plan(table, read(loaded, patches("mlp", ["8", "1000000000000"])))
    assert blocks == []
    parity_check.check(runner, blocks)
    listed = intervention_table(patches("mlp", ["6"], layers=1) * 2)
    named = listed.with_columns(pair=pl.Series([0, 1], dtype=pl.Int32))
    single = interventions.read(named, loaded.architecture, ROLES)
    assert {pair for _, pair in measured(runner, table, single)} == {1}


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder data/tiny/circuit of a project with one random subject.

    It has means and two tables of pairs, without split and operators.
    """
    section = alone("tiny", source=str(checkpoint_folder), revision="random")
    settings = section | {"runs": {**SHIPPED["runs"], "rows_per_pass": 64}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    data = tmp_path / "data/tiny/circuit"
    data.mkdir(parents=True)
    means = {name: np.zeros((4, 1, 5, 1)) for name in ("neurons", "heads", "residual")}
    hdf5_store.write_array(tmp_path / "data/tiny/store/means.h5", means, {})
    for seed, name in enumerate(("pairs", "others")):
        pair_table(seed, LENGTHS).drop("operator", "split").write_parquet(data / f"{name}.parquet")
    table = intervention_table([[], *patches("mlp", PLACES)])
    table.write_parquet(data / "places_interventions.parquet")
    monkeypatch.chdir(tmp_path)
    return data


@pytest.mark.parametrize("kind", ["llama"])
def test_an_experiment_names_its_pairs(project: Path, checkpoint_folder: Path):
    tables = []
    for name in ([], ["circuit/pairs"], ["circuit/others"]):
        runs.main("circuit/places", "tiny", *name)
        tables.append(pl.read_parquet(project / "runs/places.parquet"))
    default, pairs, others = tables
    assert default.equals(pairs)
    assert not default.equals(others)
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    for table, name in ((pairs, "pairs"), (others, "others")):
        assert len(table) == 5 + 2 * (8 * 2 + 5 * 3)
        clean = table.filter(intervention=0).sort("pair")
        prompts = pl.read_parquet(project / f"{name}.parquet")
        for row, logit in zip(prompts.iter_rows(named=True), clean["answer_logit"], strict=True):
            logits = loaded.model(input_ids=torch.tensor([row["tokens"]])).logits[0, -1]
            assert logit == pytest.approx(float(logits[row["answer_token"]]), abs=1e-4)


@pytest.mark.parametrize("kind", ["llama"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"replacement": "mean"},
            "intervention 0, pair 2: there is no mean for prompts of 8 tokens; "
            "replace by zero or counterfactual",
        ),
        (
            {"replacement": "counterfactual", "position": "all"},
            "intervention 0, pair 3: a counterfactual of another length cannot replace",
        ),
        (
            {"component": "residual", "replacement": "given", "given": "x"},
            "places_given.h5 gives nothing for pair 4",
        ),
    ],
)
def test_a_missing_replacement_is_named_before_the_model_is_loaded(
    project: Path, change: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
):
    """Other pairs have the replacement."""
    external_values.write(project / "places_given.h5", np.arange(4), {"x": np.zeros((4, 32))})
    table = intervention_table(patches("mlp", ["last"], layers=1))
    columns = [pl.lit(value).alias(name) for name, value in change.items()]
    table.with_columns(columns).write_parquet(project / "places_interventions.parquet")
    monkeypatch.delattr(checkpoint, "from_settings")
    with pytest.raises(SystemExit, match=message):
        runs.main("circuit/places", "tiny")


WRONG_PAIRS = {  # columns, and what the error says
    "positions": (
        {"positions": pl.lit(4)},
        "needs the column positions, a struct of integers: for each role the position of its token",
    ),
    "roles": (
        {"counterfactual_positions": pl.struct(last=4)},
        "the same roles: not last, op1, op2, operator and last",
    ),
    "twice": ({"pair": pl.lit(3)}, "pair 3 is there twice"),
    "a number": (
        {"pair": pl.col("pair") / 2},
        "the column pair of a table of pairs is Float64; cast it to integer",
    ),
    "no prompt": (
        {"tokens": pl.lit([], pl.List(pl.Int32))},
        "pair 0: tokens hold None; the model's tokens are 0..",
    ),
    "a null": (
        {"tokens": pl.concat_list(pl.lit(None, pl.Int64), "tokens")},
        "pair 0: tokens hold None, which does not exist",
    ),
    "a token": (
        {"counterfactual_tokens": pl.lit([1, 2, 3, 4, 140])},
        "pair 0: counterfactual_tokens hold 140; the model's tokens are 0..139",
    ),
    "an answer": (
        {"answer_token": pl.lit(None, pl.Int32)},
        "pair 0: answer_token is None; the model's tokens are 0..139",
    ),
    "a place": (
        {"positions": pl.struct(op1=1, operator=2, op2=3, last=5)},
        "pair 0: positions.last is 5, where no token",
    ),
}


@pytest.mark.parametrize("kind", ["llama"])
@pytest.mark.parametrize("wrong", WRONG_PAIRS)
def test_pairs_that_cannot_run_are_named_in_one_line(
    project: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
):
    """The model is not loaded by then."""
    change, message = WRONG_PAIRS[wrong]
    path = project / "pairs.parquet"
    pl.read_parquet(path).with_columns(**change).write_parquet(path)
    monkeypatch.delattr(checkpoint, "from_settings")
    with pytest.raises(SystemExit) as error:
        runs.main("circuit/places", "tiny")
    [line] = str(error.value).splitlines()
    assert line.startswith("circuit/places tiny: ")
    assert message in line


@pytest.mark.parametrize("kind", ["llama"])
def test_interventions_that_cannot_run_are_named_in_one_line(project: Path):
    table = intervention_table(patches("mlp", ["last"]))
    for wrong, message in (
        (table.drop("replacement"), "needs the columns replacement"),
        (table.with_columns(layer=7), "layer 7 does not exist"),
    ):
        wrong.write_parquet(project / "places_interventions.parquet")
        with pytest.raises(SystemExit, match=f"circuit/places tiny: .*{message}"):
            runs.main("circuit/places", "tiny")


@pytest.mark.parametrize("kind", ["llama"])
@pytest.mark.parametrize("empty", ["places_interventions", "pairs"])
def test_runs_of_nothing_are_an_empty_table(project: Path, empty: str):
    path = project / f"{empty}.parquet"
    pl.read_parquet(path).clear().write_parquet(path)
    runs.main("circuit/places", "tiny")
    written = pl.read_parquet(project / "runs/places.parquet")
    assert len(written) == 0
    assert written.schema == runs.SCHEMA
