"""Positions by place: whole parts at every token of prompts of several lengths, and experiments on other tables of pairs."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from stages.lib.core import layered
from stages.lib.executor import canary, executor, given, interventions, runs
from stages.lib.model import checkpoint
from tests.lib.test_executor import (
    EXACT,
    LAYOUTS,
    PLACES,
    ROLES,
    expected,
    intervention_table,
    measured,
    pair_table,
    subject,
)
from tests.micro import SHIPPED, alone

LENGTHS = [(5, 5), (8, 8), (8, 5), (5, 8), (8, 8)]


def patches(
    component: str, positions: list[str], units: list[int] | None = None, layers: int = 2
) -> list[list[dict]]:
    """One patch each: the component's counterfactual value, at every position of every layer."""
    constants = {
        "component": component,
        "units": units,
        "key_position": None,
        "replacement": "counterfactual",
    }
    return [
        [{**constants, "layer": layer, "position": position}]
        for layer in range(layers)
        for position in positions
    ]


def read(
    loaded: checkpoint.Checkpoint, listed: list[list[dict]]
) -> list[interventions.Intervention]:
    return interventions.read(
        intervention_table(listed, [None] * len(listed)), loaded.architecture, ROLES
    )


def by_hand(loaded: checkpoint.Checkpoint, row: dict, patch: interventions.Patch) -> torch.Tensor:
    """Last-position logits with what an attention block or MLP puts out at one place taken from the other prompt's run, or numbers of it."""
    part, units = loaded.architecture.layers[patch.layer], patch.unit_numbers()
    module, chosen = (
        part.mixer if patch.component == "head" else part.mlp,
        slice(None) if units is None else units.tolist(),
    )
    kept: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, __: tuple, out: torch.Tensor | tuple) -> None:
        kept.append(out[0] if isinstance(out, tuple) else out)

    def put(_: torch.nn.Module, __: tuple, out: torch.Tensor | tuple) -> torch.Tensor | tuple:
        changed = (out[0] if isinstance(out, tuple) else out).clone()
        changed[:, int(patch.position), chosen] = kept[0][:, int(patch.position), chosen]
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    for hook, tokens in ((keep, row["counterfactual_tokens"]), (put, row["tokens"])):
        handle = module.register_forward_hook(hook)
        logits = loaded.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
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
def test_what_parts_put_out_at_every_place_are_forward_passes_with_a_hook(
    kind: str, dtype: torch.dtype, tolerance: float, component: str, units: list[int] | None
):
    loaded, table = subject(kind, dtype), pair_table(11, LENGTHS)
    wanted = read(loaded, patches(component, PLACES, units, len(loaded.architecture.layers)))
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    canary.check(runner, runner.plan(table, wanted))
    fast = measured(runner, table, wanted)
    assert fast.keys() == {
        (one.number, pair)
        for one in wanted
        for pair, lengths in enumerate(LENGTHS)
        if int(one.patches[0].position) < min(lengths)
    }
    for (number, pair), values in fast.items():
        row, [patch] = table.row(pair, named=True), wanted[number].patches
        logits = by_hand(loaded, row, patch)
        answers = [row["answer_token"], row["counterfactual_answer_token"]]
        plain = np.array([*logits[answers], logits.max(), logits.mean()])
        np.testing.assert_allclose(
            values[:4],
            plain,
            rtol=0,
            atol=tolerance * np.abs(plain).max(),
            err_msg=f"{number} {pair}",
        )


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
def test_a_place_is_the_role_that_stands_there(kind: str, component: str, units: list[int] | None):
    """Bit for bit, since it is the same work; but where nothing reads what the last layer writes, a place is the clean run itself."""
    loaded, table = subject(kind), pair_table(12, [(8, 8)] * 4)
    runner, places = (
        executor.Executor(loaded, None, rows=200, memory=1 << 28),
        [str(place) for place in LAYOUTS[8]],
    )
    wanted = read(loaded, patches(component, places, units))
    by_role, by_place = (
        measured(runner, table, one)
        for one in (read(loaded, patches(component, ROLES, units)), wanted)
    )
    clean = measured(runner, table, read(loaded, [[]]))
    assert by_role.keys() == by_place.keys()
    for (number, pair), values in by_role.items():
        [patch] = wanted[number].patches
        unread = (
            patch.layer == len(loaded.architecture.layers) - 1
            and component != "residual"
            and patch.position != places[-1]
        )
        np.testing.assert_array_equal(by_place[number, pair], clean[0, pair] if unread else values)
        np.testing.assert_allclose(
            by_place[number, pair][:4], values[:4], rtol=0, atol=1e-5 * np.abs(values[:4]).max()
        )


def test_what_both_prompts_share_is_never_run_twice(kind: str):
    """Prompts that differ from place 3 on: patches in front of it leave the clean run, bit for bit, and cost no block of their own."""
    loaded, table = subject(kind), pair_table(15, [(8, 8)] * 4)
    same = [
        clean[:3] + other[3:]
        for clean, other in table.select("tokens", "counterfactual_tokens").iter_rows()
    ]
    assert all(clean[3] != other[3] for clean, other in zip(table["tokens"], same, strict=True))
    table = table.with_columns(
        counterfactual_tokens=pl.Series(same, dtype=table.schema["counterfactual_tokens"])
    )
    runner = executor.Executor(loaded, None, rows=200, memory=1 << 28)
    wanted = read(loaded, [[], *patches("mlp", PLACES)])
    fast, plain = measured(runner, table, wanted), expected(loaded, table, None, wanted)
    for key, values in plain.items():
        np.testing.assert_allclose(
            fast[key][:4],
            values[:4],
            rtol=0,
            atol=1e-5 * np.abs(values[:4]).max(),
            err_msg=str(key),
        )
    shared = [one.number for one in wanted[1:] if int(one.patches[0].position) < 3]
    for number, pair in itertools.product(shared, range(4)):
        np.testing.assert_array_equal(fast[number, pair], fast[0, pair])
    unpatched = [
        one.number
        for block in runner.plan(table, wanted)
        for one in block.interventions
        if not one.patches
    ]
    assert {0, *shared} <= set(unpatched)


def test_an_intervention_runs_where_all_of_its_places_are(kind: str):
    loaded, table = subject(kind), pair_table(13, LENGTHS)
    several = [
        one[0]
        for one in itertools.chain(
            patches("mlp", ["1"]), patches("head", ["6"]), patches("mlp", ["2"])
        )
    ]
    edge = {
        "component": "edge",
        "layer": 0,
        "units": None,
        "position": "last",
        "key_position": "5",
        "replacement": "zero",
    }
    wanted = read(
        loaded,
        [several[:1], several[:3], [edge], [{**edge, "position": "7", "key_position": "3"}], []],
    )
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    fast, plain = measured(runner, table, wanted), expected(loaded, table, None, wanted)
    assert {number: [pair for n, pair in sorted(fast) if n == number] for number in range(5)} == {
        0: [0, 1, 2, 3, 4], 1: [1, 4], 2: [1, 4], 3: [1, 4], 4: [0, 1, 2, 3, 4],
    }  # fmt: skip
    for key, values in plain.items():
        np.testing.assert_allclose(
            fast[key][:4],
            values[:4],
            rtol=0,
            atol=1e-5 * np.abs(values[:4]).max(),
            err_msg=str(key),
        )


def test_an_intervention_without_a_pair_to_run_on_is_no_error():
    loaded, table = subject("llama"), pair_table(14, LENGTHS)
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    blocks = runner.plan(table, read(loaded, patches("mlp", ["8", "1000000000000"])))
    assert blocks == []
    canary.check(runner, blocks)
    listed = intervention_table(patches("mlp", ["6"], layers=1) * 2, [None] * 2).with_columns(
        pair=pl.Series([0, 1], dtype=pl.Int32)
    )
    single = interventions.read(listed, loaded.architecture, ROLES)
    assert {key[1] for key in measured(runner, table, single)} == {1}


@pytest.fixture
def project(checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder data/tiny/circuit of a project with one random subject, its means, and two tables of pairs; it has no split and no operators."""
    chosen = alone("tiny", source=str(checkpoint_folder), revision="random")
    kept = chosen | {"runs": {**SHIPPED["runs"], "rows_per_pass": 64}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(kept))
    data = tmp_path / "data/tiny/circuit"
    data.mkdir(parents=True)
    means = {name: np.zeros((4, 1, 5, 1)) for name in ("neurons", "heads", "residual")}
    layered.write_array(tmp_path / "data/tiny/store/means.h5", means, {})
    for seed, name in enumerate(("pairs", "others")):
        pair_table(seed, LENGTHS).drop("operator", "split").write_parquet(data / f"{name}.parquet")
    intervention_table([[], *patches("mlp", PLACES)], [None] * 17).write_parquet(
        data / "places_interventions.parquet"
    )
    monkeypatch.chdir(tmp_path)
    return data


@pytest.mark.parametrize("kind", ["llama"])
def test_an_experiment_names_its_pairs(project: Path, checkpoint_folder: Path):
    found = []
    for name in ([], ["circuit/pairs"], ["circuit/others"]):
        runs.main("circuit/places", "tiny", *name)
        found.append(pl.read_parquet(project / "runs/places.parquet"))
    assert found[0].equals(found[1])
    assert not found[0].equals(found[2])
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    for table, name in ((found[1], "pairs"), (found[2], "others")):
        clean = table.filter(pl.col("intervention") == 0).sort("pair")
        prompts = pl.read_parquet(project / f"{name}.parquet")
        for row, logit in zip(prompts.iter_rows(named=True), clean["answer_logit"], strict=True):
            own = loaded.model(input_ids=torch.tensor([row["tokens"]])).logits[
                0, -1, row["answer_token"]
            ]
            assert logit == pytest.approx(float(own), abs=1e-4)
        assert len(table) == 5 + 2 * (8 * 2 + 5 * 3)


@pytest.mark.parametrize("kind", ["llama"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"replacement": "mean"},
            "intervention 0, pair 2: there is no mean for prompts of 8 tokens; replace by zero or counterfactual",
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
def test_what_prompts_do_not_have_is_said_before_the_model_is_loaded(
    project: Path, change: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
):
    """Even where others have it."""
    given.write(project / "places_given.h5", np.arange(4), {"x": np.zeros((4, 32))})
    table = intervention_table(patches("mlp", ["last"], layers=1), [None])
    table.with_columns(**{name: pl.lit(value) for name, value in change.items()}).write_parquet(
        project / "places_interventions.parquet"
    )
    monkeypatch.delattr(checkpoint, "of")
    with pytest.raises(SystemExit, match=said):
        runs.main("circuit/places", "tiny")


WRONG_PAIRS = {  # columns: what is said of them
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
def test_pairs_that_cannot_be_asked_are_said_in_a_line(
    project: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
):
    """Before the model is loaded."""
    change, said = WRONG_PAIRS[wrong]
    pl.read_parquet(project / "pairs.parquet").with_columns(**change).write_parquet(
        project / "pairs.parquet"
    )
    monkeypatch.delattr(checkpoint, "of")
    with pytest.raises(SystemExit) as error:
        runs.main("circuit/places", "tiny")
    assert str(error.value).startswith("circuit/places tiny: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["llama"])
def test_interventions_that_cannot_be_run_are_said_in_a_line(project: Path):
    table = intervention_table(patches("mlp", ["last"]), [None] * 2)
    for wrong, said in (
        (table.drop("replacement"), "needs the columns replacement"),
        (table.with_columns(layer=7), "layer 7 does not exist"),
    ):
        wrong.write_parquet(project / "places_interventions.parquet")
        with pytest.raises(SystemExit, match=f"circuit/places tiny: .*{said}"):
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
