"""Check that what cannot run is refused before anything runs, and that parity checks work."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from stages.lib.executor import blocks as planning
from stages.lib.executor import executor, interventions, naive, parity_check
from stages.lib.executor.blocks import PassSizes
from stages.lib.executor.interventions import Intervention, InterventionError
from tests.lib.test_executor import ROLES, intervention_table, pair_table, patch_row, subject

NEURON = patch_row("neuron", 1, [3])


def read(table: pl.DataFrame) -> list[Intervention]:
    return interventions.read(table, subject("llama").architecture, ROLES)


def plan(pairs: pl.DataFrame, rows: list[Intervention]) -> list[planning.Block]:
    return PassSizes(subject("llama"), 100, 1 << 28).plan(pairs, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"component": "norm"},
            "component 'norm' does not exist; there are none, mlp, head, neuron, "
            "coordinate, residual, edge",
        ),
        ({"layer": 3}, r"layer 3 does not exist; the subject has the layers 0\.\.2"),
        ({"layer": -1}, r"layer -1 does not exist"),
        ({"layer": None}, "layer None does not exist"),
        ({"units": [48]}, r"neuron 48 does not exist; there are 0\.\.47"),
        ({"units": [-2, 1]}, "neuron -2 does not exist"),
        ({"units": [1, 1]}, "name one unit twice"),
        (
            {"component": "coordinate", "units": [32]},
            r"coordinate 32 does not exist; there are 0\.\.31",
        ),
        (
            {"component": "coordinate", "replacement": "mean"},
            "replacement 'mean' does not exist; there are zero, counterfactual",
        ),
        ({"component": "head", "units": [4]}, r"head 4 does not exist; there are 0\.\.3"),
        ({"component": "mlp"}, "mlp has no units"),
        (
            {"position": "op3"},
            "position 'op3' does not exist; there are op1, operator, op2, last, all, "
            "or the index of a token, from 0",
        ),
        ({"position": "-1"}, "position '-1' does not exist"),
        ({"position": "01"}, "position '01' does not exist"),
        ({"position": "²"}, "position '²' does not exist"),
        ({"position": "1\n"}, r"position '1\\n' does not exist"),
        ({"position": None}, "position None does not exist"),
        (
            {"replacement": "noise"},
            "replacement 'noise' does not exist; there are zero, mean, mean_add, "
            "mean_subtract, mean_multiply, mean_divide, counterfactual",
        ),
        ({"key_position": "op1"}, "key position 'op1' does not exist"),
        ({"key_position": "1"}, "key position '1' does not exist; there are None$"),
        (
            {"component": "edge", "units": None},
            "key position None does not exist; there are op1, operator, op2, last, "
            "earlier, or the index of a token, from 0",
        ),
        (
            {"component": "edge", "units": None, "position": "all", "key_position": "1"},
            "position 'all' does not exist",
        ),
        (
            {"component": "edge", "units": None, "key_position": "op1", "replacement": "mean"},
            "replacement 'mean' does not exist; there are zero",
        ),
    ],
)
def test_a_patch_of_something_that_does_not_exist_is_named(change: dict, message: str):
    table = intervention_table([[], [NEURON], [{**NEURON, **change}]])
    with pytest.raises(InterventionError, match=f"intervention 2.*{message}"):
        read(table)


def test_prompts_that_do_not_exist_are_named():
    table = intervention_table([[NEURON]])
    message = "operator 'modulo' does not exist; there are None, add"
    with pytest.raises(InterventionError, match=message):
        read(table.with_columns(operator=pl.lit("modulo")))
    message = "split 'test' does not exist; there are None, discovery, evaluation"
    with pytest.raises(InterventionError, match=message):
        read(table.with_columns(split=pl.lit("test")))


def test_a_pair_that_does_not_exist_is_named():
    rows = read(intervention_table([[NEURON]]).with_columns(pair=pl.lit(7)))
    with pytest.raises(InterventionError, match="intervention 0: pair 7 does not exist"):
        plan(pair_table(0, [(5, 5)] * 2), rows)


@pytest.mark.parametrize(
    ("operator", "split", "message"),
    [
        ("multiply", None, "of the operator 'add', not 'multiply'; name its own, or null for any"),
        (
            "add",
            "evaluation",
            "of the split 'discovery', not 'evaluation'; name its own, or null for any",
        ),
    ],
)
def test_a_pair_of_another_operator_or_split_is_refused(
    operator: str, split: str | None, message: str
):
    """The intervention would have no prompt at all."""
    pairs = pair_table(0, [(5, 5)] * 2)
    listed = intervention_table([[NEURON]], [operator]).with_columns(
        pair=pl.lit(0), split=pl.lit(split, pl.String)
    )
    with pytest.raises(InterventionError, match=f"intervention 0: pair 0 is {message}"):
        plan(pairs, read(listed))
    own = listed.with_columns(operator=pl.lit("add"), split=pl.lit("discovery"))
    [block] = plan(pairs, read(own))
    assert block.runs == 1


@pytest.mark.parametrize("missing", ["operator", "split"])
def test_prompts_named_by_a_column_that_pairs_lack_are_refused(missing: str):
    pairs = pair_table(0, [(5, 5)] * 2).drop(missing)
    listed = intervention_table([[], [NEURON]], ["add"] * 2)
    rows = read(listed.with_columns(split=pl.lit("discovery")))
    lacking = f"the table of pairs has no column {missing}"
    message = f"intervention 0: {lacking}, of which it wants '(add|discovery)'; null is any"
    with pytest.raises(InterventionError, match=message):
        plan(pairs, rows)


def test_two_patches_of_one_value_are_refused():
    whole = patch_row("mlp", 1, None, "all")
    message = r"intervention 0 replaces neuron values of layer 1 at .* twice"
    with pytest.raises(InterventionError, match=message):
        read(intervention_table([[NEURON, whole]]))


@pytest.mark.parametrize(
    "patches",
    [
        [NEURON, {**NEURON, "units": [4]}, {**NEURON, "position": "op1"}, {**NEURON, "layer": 0}],
        [{**NEURON, "position": "1"}, {**NEURON, "position": "10"}, {**NEURON, "units": [4]}],
    ],
)
def test_patches_of_different_values_are_read(patches: list[dict]):
    [intervention] = read(intervention_table([patches]))
    assert len(intervention.patches) == len(patches)


@pytest.mark.parametrize("positions", [("4", "4"), ("4", "last"), ("4", "all")])
def test_a_role_may_be_at_a_location(positions: tuple[str, str]):
    listed = intervention_table([[{**NEURON, "position": position} for position in positions]])
    at = " and ".join(sorted(set(positions)))
    message = f"replaces neuron values of layer 1 at {at} twice"
    with pytest.raises(InterventionError, match=message):
        read(listed)


def test_a_token_of_two_roles_is_not_replaced_twice():
    """A prompt may end with its second operand."""
    pairs, other = pair_table(0, [(5, 5)] * 2), {**NEURON, "position": "op2"}
    several = [[other, NEURON], [other, {**NEURON, "units": [4]}], [NEURON]]
    rows = read(intervention_table(several))
    assert sum(block.runs for block in plan(pairs, rows)) == 6
    ends = pairs.with_columns(positions=pl.struct(op1=1, operator=2, op2=4, last=4))
    assert sum(block.runs for block in plan(ends, rows[1:])) == 4
    message = "intervention 0 replaces neuron values of layer 1 at last and op2 twice"
    with pytest.raises(InterventionError, match=message):
        plan(ends, rows)


def test_a_table_without_its_columns_is_refused():
    with pytest.raises(InterventionError, match="needs the columns layer"):
        read(intervention_table([[NEURON]]).drop("layer"))


@pytest.mark.parametrize(
    ("column", "kind", "wanted"),
    [
        (pl.Series("layer", [1.5, 2.0]), "Float64", "integer"),
        (pl.Series("layer", ["1", "2"]), "String", "integer"),
        (pl.Series("intervention", [0.0, 1.0]), "Float64", "integer"),
        (pl.Series("pair", [0.5, None]), "Float64", "integer"),
        (pl.Series("units", [3, 4]), "Int64", r"integer\[\]"),
        (pl.Series("units", [[1.5], [2.0]]), r"List\(Float64\)", r"integer\[\]"),
        (pl.Series("component", [1, 2]), "Int64", "varchar"),
        (pl.Series("position", [1, 2]), "Int64", "varchar"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_named(column: pl.Series, kind: str, wanted: str):
    table = intervention_table([[NEURON]] * 2).with_columns(column)
    problem = f"the column {column.name} of a table of interventions is {kind}"
    message = f"{problem}; cast it to {wanted} where the table is made"
    with pytest.raises(InterventionError, match=message):
        read(table)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pl.Series("layer", [0, 1 << 40]),
            "intervention 1: layer 1099511627776 does not exist; it is an integer, RANGE",
        ),
        (
            pl.Series("intervention", [0, None]),
            "interventions are numbered by integers, RANGE, in the column .* holds None",
        ),
        (pl.Series("intervention", [0, -1]), "interventions are numbered by integers.* holds -1"),
        (
            pl.Series("intervention", [0, 1 << 31]),
            "interventions are numbered by integers.* holds 2147483648",
        ),
        (
            pl.Series("units", [[3], [3, None]]),
            "intervention 1: units hold None, which does not exist; they are integers, RANGE",
        ),
        (
            pl.Series("units", [[3], [(1 << 32) + 3]]),
            "intervention 1: units hold 4294967299, which does not exist",
        ),
    ],
    ids=str,
)
def test_no_number_is_rounded_or_cut(column: pl.Series, message: str):
    table = intervention_table([[NEURON]] * 2).with_columns(column)
    with pytest.raises(InterventionError, match=message.replace("RANGE", r"0\.\.2147483647")):
        read(table)


def test_integers_of_any_width_and_nulls_of_any_type_are_read():
    """In SQL, `null as units` is an integer, and counting gives 64 bits."""
    table = intervention_table([[patch_row("mlp", 1)], []])
    numbers = pl.col("intervention", "layer")
    nulls = {"units": pl.lit(None, pl.Int32), "pair": pl.lit(None)}
    assert read(table) == read(table.with_columns(numbers.cast(pl.Int64), **nulls))
    table = intervention_table([[NEURON], []])
    units = pl.col("units").cast(pl.List(pl.Int64))
    assert read(table) == read(table.with_columns(numbers.cast(pl.UInt8), units))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replacement": "mean"}, "no mean for prompts of 8 tokens"),
        ({"replacement": "counterfactual", "position": "all"}, "another length"),
    ],
)
def test_a_replacement_that_a_prompt_does_not_have_is_an_error(change: dict, message: str):
    rows = read(intervention_table([[{**NEURON, **change}]]))
    runner = executor.Executor(subject("llama"), None, rows=100, memory=1 << 28)
    [block] = runner.plan(pair_table(0, [(8, 5)]), rows)
    with pytest.raises(InterventionError, match=message):
        list(runner.run(block))


def test_a_nan_after_a_patch_is_an_error_that_names_the_intervention(kind: str):
    """Zeroing one neuron makes a layer of this model divide zero by zero."""
    loaded = subject(kind)
    layer = loaded.architecture.layers[1]

    def poison(_, inputs, output):
        return torch.where((inputs[0][..., 3] == 0)[..., None], torch.nan, output)

    layer.mlp_out.register_forward_hook(poison)
    patches = [{**NEURON, "position": "all"}, patch_row("head", 1, [0])]
    rows = interventions.read(intervention_table([patches]), loaded.architecture, ROLES)
    runner = executor.Executor(loaded, None, rows=100, memory=1 << 28)
    [block] = runner.plan(pair_table(0, [(5, 5)]), rows)
    with pytest.raises(FloatingPointError, match=r"interventions 0 to 0: .*not finite"):
        list(runner.run(block))


def planned(loaded) -> tuple[executor.Executor, list[planning.Block]]:
    runner = executor.Executor(loaded, None, rows=100, memory=1 << 28)
    table = intervention_table([[NEURON], [{**NEURON, "layer": 0}]])
    rows = interventions.read(table, loaded.architecture, ROLES)
    return runner, runner.plan(pair_table(0, [(5, 5)] * 2), rows)


def test_a_sound_model_passes_the_parity_check(kind: str):
    parity_check.check(*planned(subject(kind)))


def counting(_, inputs: tuple) -> tuple:
    """Change what enters a layer by the number of its positions."""
    x, *more = inputs
    length, width = x.shape[1:]
    return ((x + length) * torch.linspace(1, length, width), *more)


def test_a_model_that_counts_its_tokens_is_run_by_whole_prompts(kind: str):
    """A layer that computes something else for one position than for five cannot be restarted."""
    loaded = subject(kind)
    runner, blocks = planned(loaded)

    loaded.architecture.layers[-1].block.register_forward_pre_hook(counting)
    assert runner.restarts
    parity_check.check(runner, blocks)
    assert not runner.restarts
    for block in blocks:
        [[intervention, *_], measured] = next(runner.run(block))
        plain = naive.logits(runner.fresh(block.pairs), intervention).max(-1).values
        np.testing.assert_allclose(measured.max_logit[0], plain.numpy(), rtol=1e-5)


def test_a_model_that_magnifies_rounding_passes_the_parity_check(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    """The last layer is 10^6 times as steep as its input: float64 tells rounding from mistakes."""
    loaded = subject(kind)
    loaded.architecture.layers[-1].mlp_out.register_forward_hook(
        lambda _, inputs, out: out + torch.sin(1e6 * out)
    )
    runner, blocks = planned(loaded)
    parity_check.check(runner, blocks)
    monkeypatch.setattr(parity_check, "_only_rounding", lambda *_: False)
    parity_check.check(runner, blocks)
    assert not runner.restarts  # whole prompts magnify the same rounding
    monkeypatch.setattr(naive, "logits", lambda *_: torch.zeros(2, 140))
    with pytest.raises(parity_check.ParityError, match="off those of plain forward passes"):
        parity_check.check(runner, blocks)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each plain forward pass; its items are numbers of prompts."""
    prompts: list[int] = []
    plain = naive.logits

    def count(values, intervention) -> torch.Tensor:
        prompts.append(len(values.pairs))
        return plain(values, intervention)

    monkeypatch.setattr(naive, "logits", count)
    return prompts


def test_processes_share_the_comparisons_of_a_parity_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What another has finished is not repeated; what it has only begun is."""
    loaded, prompts = subject("llama"), counted(monkeypatch)
    parity_check.check(*planned(loaded), tmp_path / "notes")
    assert sorted(prompts) == [1, 1, 1, 1, 2]  # no patch, two zeroed MLPs, both interventions
    prompts.clear()
    parity_check.check(*planned(loaded), tmp_path / "notes")
    assert not prompts
    (tmp_path / "notes" / "1 done").unlink()
    parity_check.check(*planned(loaded), tmp_path / "notes")
    assert prompts == [2]


def test_all_processes_run_whole_prompts_if_one_finds_that_they_must(tmp_path: Path):
    loaded = subject("llama")
    runners = [planned(loaded) for _ in range(2)]
    block = loaded.architecture.layers[-1].block
    hook = block.register_forward_pre_hook(counting)
    parity_check.check(*runners[0], tmp_path / "notes")
    hook.remove()  # the second would not find anything
    parity_check.check(*runners[1], tmp_path / "notes")
    assert [runner.restarts for runner, _ in runners] == [False, False]


def test_only_the_first_intervention_of_a_kind_is_compared_on_two_prompts():
    loaded = subject("llama")
    everywhere = {**NEURON, "position": "all", "replacement": "zero"}
    table = intervention_table([[NEURON], [NEURON], [everywhere], [everywhere]])
    rows = interventions.read(table, loaded.architecture, ROLES)
    [pairs] = {id(b.pairs): b.pairs for b in planned(loaded)[1]}.values()
    blocks = [planning.Block(pairs, (row,)) for row in rows]
    tried = list(parity_check._tried(blocks))
    assert [len(part) for part, _ in tried] == [2, 1, 2, 1]
    assert [each.number for _, each in tried] == [0, 1, 2, 3]


def test_an_mlp_without_effect_fails_the_parity_check(kind: str):
    loaded = subject(kind)
    loaded.architecture.layers[-1].mlp_out.weight.zero_()
    message = r"zeroing the MLP of layer . at the last position changes no logit"
    with pytest.raises(parity_check.ParityError, match=message):
        parity_check.check(*planned(loaded))
