"""What cannot be run is refused before anything runs, and what a model does wrong is noticed."""

import numpy as np
import polars as pl
import pytest
import torch

from stages.lib.executor import blocks as planning
from stages.lib.executor import canary, executor, interventions, naive
from stages.lib.executor.blocks import PassSizes
from tests.lib.test_executor import ROLES, intervention_table, pair_table, subject

NEURON = {
    "component": "neuron",
    "layer": 1,
    "units": [3],
    "position": "last",
    "key_position": None,
    "replacement": "zero",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"component": "norm"},
            "component 'norm' does not exist; there are none, mlp, head, neuron, coordinate, residual, edge",
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
            "position 'op3' does not exist; there are op1, operator, op2, last, all, or a token's place from 0",
        ),
        ({"position": "-1"}, "position '-1' does not exist"),
        ({"position": "01"}, "position '01' does not exist"),
        ({"position": "²"}, "position '²' does not exist"),
        ({"position": "1\n"}, r"position '1\\n' does not exist"),
        ({"position": None}, "position None does not exist"),
        (
            {"replacement": "noise"},
            "replacement 'noise' does not exist; there are zero, mean, mean_add, mean_subtract, mean_multiply, mean_divide, counterfactual",
        ),
        ({"key_position": "op1"}, "key position 'op1' does not exist"),
        ({"key_position": "1"}, "key position '1' does not exist; there are None$"),
        (
            {"component": "edge", "units": None},
            "key position None does not exist; there are op1, operator, op2, last, earlier, or a token's place from 0",
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
    table = intervention_table([[], [NEURON], [{**NEURON, **change}]], [None] * 3)
    with pytest.raises(interventions.InterventionError, match=f"intervention 2.*{message}"):
        interventions.read(table, subject("llama").architecture, ROLES)


def test_prompts_that_do_not_exist_are_named():
    architecture = subject("llama").architecture
    with pytest.raises(
        interventions.InterventionError,
        match="operator 'modulo' does not exist; there are None, add",
    ):
        interventions.read(intervention_table([[NEURON]], ["modulo"]), architecture, ROLES)
    with pytest.raises(
        interventions.InterventionError,
        match="split 'test' does not exist; there are None, discovery, evaluation",
    ):
        interventions.read(
            intervention_table([[NEURON]], [None]).with_columns(split=pl.lit("test")),
            architecture,
            ROLES,
        )


def test_a_pair_that_does_not_exist_is_named():
    loaded, table = subject("llama"), pair_table(0, [(5, 5)] * 2)
    rows = interventions.read(
        intervention_table([[NEURON]], [None]).with_columns(pair=pl.lit(7)),
        loaded.architecture,
        ROLES,
    )
    with pytest.raises(
        interventions.InterventionError, match="intervention 0: pair 7 does not exist"
    ):
        executor.Executor(loaded, None, rows=100, memory=1 << 28).plan(table, rows)


@pytest.mark.parametrize(
    ("operator", "split", "message"),
    [
        (
            "multiply",
            None,
            "intervention 0: pair 0 is of the operator 'add', not 'multiply'; name its own, or null for any",
        ),
        (
            "add",
            "evaluation",
            "intervention 0: pair 0 is of the split 'discovery', not 'evaluation'; name its own, or null for any",
        ),
    ],
)
def test_a_pair_of_another_operator_or_split_is_refused(
    operator: str, split: str | None, message: str
):
    """It would have no prompt at all."""
    loaded, table = subject("llama"), pair_table(0, [(5, 5)] * 2)
    listed = intervention_table([[NEURON]], [operator]).with_columns(
        pair=pl.lit(0), split=pl.lit(split, pl.String)
    )
    with pytest.raises(interventions.InterventionError, match=message):
        PassSizes(loaded, 100, 1 << 28).plan(
            table, interventions.read(listed, loaded.architecture, ROLES)
        )
    own = listed.with_columns(operator=pl.lit("add"), split=pl.lit("discovery"))
    [block] = PassSizes(loaded, 100, 1 << 28).plan(
        table, interventions.read(own, loaded.architecture, ROLES)
    )
    assert block.runs == 1


@pytest.mark.parametrize("missing", ["operator", "split"])
def test_prompts_that_are_named_by_a_column_that_pairs_lack_are_refused(missing: str):
    loaded, table = subject("llama"), pair_table(0, [(5, 5)] * 2).drop(missing)
    listed = intervention_table([[], [NEURON]], ["add"] * 2).with_columns(split=pl.lit("discovery"))
    message = f"intervention 0: the table of pairs has no column {missing}, of which it wants '(add|discovery)'; null is any"
    with pytest.raises(interventions.InterventionError, match=message):
        PassSizes(loaded, 100, 1 << 28).plan(
            table, interventions.read(listed, loaded.architecture, ROLES)
        )


def test_two_patches_of_one_value_are_refused():
    whole = {**NEURON, "component": "mlp", "units": None, "position": "all"}
    with pytest.raises(
        interventions.InterventionError,
        match=r"intervention 0 replaces neuron values of layer 1 at .* twice",
    ):
        interventions.read(
            intervention_table([[NEURON, whole]], [None]), subject("llama").architecture, ROLES
        )
    apart = [
        NEURON,
        {**NEURON, "units": [4]},
        {**NEURON, "position": "op1"},
        {**NEURON, "layer": 0},
    ]
    assert (
        len(
            interventions.read(
                intervention_table([apart], [None]), subject("llama").architecture, ROLES
            )[0].patches
        )
        == 4
    )
    at_places = [
        {**NEURON, "position": "1"},
        {**NEURON, "position": "10"},
        {**NEURON, "units": [4]},
    ]
    assert (
        len(
            interventions.read(
                intervention_table([at_places], [None]), subject("llama").architecture, ROLES
            )[0].patches
        )
        == 3
    )


@pytest.mark.parametrize("positions", [("4", "4"), ("4", "last"), ("4", "all")])
def test_a_role_may_be_where_a_place_is(positions: tuple[str, str]):
    listed = intervention_table(
        [[{**NEURON, "position": position} for position in positions]], [None]
    )
    message = (
        "replaces neuron values of layer 1 at " + " and ".join(sorted(set(positions))) + " twice"
    )
    with pytest.raises(interventions.InterventionError, match=message):
        interventions.read(listed, subject("llama").architecture, ROLES)


def test_two_roles_of_one_token_are_not_replaced_both():
    """A prompt may end with its second operand."""
    loaded, table = subject("llama"), pair_table(0, [(5, 5)] * 2)
    several = [
        [{**NEURON, "position": "op2"}, NEURON],
        [{**NEURON, "position": "op2"}, {**NEURON, "units": [4]}],
        [NEURON],
    ]
    rows = interventions.read(intervention_table(several, [None] * 3), loaded.architecture, ROLES)
    assert sum(block.runs for block in PassSizes(loaded, 100, 1 << 28).plan(table, rows)) == 6
    ends = table.with_columns(positions=pl.struct(op1=1, operator=2, op2=4, last=4))
    assert sum(block.runs for block in PassSizes(loaded, 100, 1 << 28).plan(ends, rows[1:])) == 4
    with pytest.raises(
        interventions.InterventionError,
        match="intervention 0 replaces neuron values of layer 1 at last and op2 twice",
    ):
        PassSizes(loaded, 100, 1 << 28).plan(ends, rows)


def test_a_table_without_its_columns_is_refused():
    with pytest.raises(interventions.InterventionError, match="needs the columns"):
        interventions.read(
            intervention_table([[NEURON]], [None]).drop("layer"),
            subject("llama").architecture,
            ROLES,
        )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pl.Series("layer", [1.5, 2.0]),
            "the column layer of a table of interventions is Float64; cast it to integer where the table is made",
        ),
        (
            pl.Series("layer", ["1", "2"]),
            "the column layer of a table of interventions is String; cast it to integer",
        ),
        (
            pl.Series("layer", [0, 1 << 40]),
            r"intervention 1: layer 1099511627776 does not exist; it is an integer, 0\.\.2147483647",
        ),
        (
            pl.Series("intervention", [0.0, 1.0]),
            "the column intervention of a table of interventions is Float64; cast it to integer",
        ),
        (
            pl.Series("intervention", [0, None]),
            r"interventions are numbered by integers, 0\.\.2147483647, in the column .* holds None",
        ),
        (pl.Series("intervention", [0, -1]), "interventions are numbered by integers.* holds -1"),
        (
            pl.Series("intervention", [0, 1 << 31]),
            "interventions are numbered by integers.* holds 2147483648",
        ),
        (
            pl.Series("pair", [0.5, None]),
            "the column pair of a table of interventions is Float64; cast it to integer",
        ),
        (
            pl.Series("units", [3, 4]),
            r"the column units of a table of interventions is Int64; cast it to integer\[\] where the table is made",
        ),
        (
            pl.Series("units", [[1.5], [2.0]]),
            r"the column units .* is List\(Float64\); cast it to integer\[\]",
        ),
        (
            pl.Series("units", [[3], [3, None]]),
            r"intervention 1: units hold None, which does not exist; they are integers, 0\.\.2147483647",
        ),
        (
            pl.Series("units", [[3], [(1 << 32) + 3]]),
            "intervention 1: units hold 4294967299, which does not exist",
        ),
        (
            pl.Series("component", [1, 2]),
            "the column component of a table of interventions is Int64; cast it to varchar",
        ),
        (
            pl.Series("position", [1, 2]),
            "the column position of a table of interventions is Int64; cast it to varchar",
        ),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_named_and_no_number_is_rounded_or_cut(
    column: pl.Series, message: str
):
    table = intervention_table([[NEURON]] * 2, [None] * 2).with_columns(column)
    with pytest.raises(interventions.InterventionError, match=message):
        interventions.read(table, subject("llama").architecture, ROLES)


def test_integers_of_any_width_and_nulls_of_any_type_are_read():
    """As SQL writes them: `null as units` is an integer, and counting gives 64 bits."""
    table = intervention_table([[{**NEURON, "component": "mlp", "units": None}], []], [None] * 2)
    wide = table.with_columns(
        pl.col("intervention", "layer").cast(pl.Int64),
        units=pl.lit(None, pl.Int32),
        pair=pl.lit(None),
    )
    some = intervention_table([[NEURON], []], [None] * 2)
    short = some.with_columns(
        pl.col("intervention", "layer").cast(pl.UInt8), pl.col("units").cast(pl.List(pl.Int64))
    )
    for usual, other in ((table, wide), (some, short)):
        read = [
            interventions.read(one, subject("llama").architecture, ROLES) for one in (usual, other)
        ]
        assert read[0] == read[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replacement": "mean"}, "no mean for prompts of 8 tokens"),
        ({"replacement": "counterfactual", "position": "all"}, "another length"),
    ],
)
def test_a_replacement_that_a_prompt_does_not_have_is_an_error(change: dict, message: str):
    loaded = subject("llama")
    rows = interventions.read(
        intervention_table([[{**NEURON, **change}]], [None]), loaded.architecture, ROLES
    )
    runner = executor.Executor(loaded, None, rows=100, memory=1 << 28)
    with pytest.raises(interventions.InterventionError, match=message):
        [list(runner.run(block)) for block in runner.plan(pair_table(0, [(8, 5)]), rows)]


def test_a_nan_behind_a_patch_is_an_error_that_names_the_intervention(kind: str):
    """Silencing one neuron makes a layer of this model divide nothing by nothing."""
    loaded = subject(kind)
    layer = loaded.architecture.layers[1]

    def poison(_, inputs, output):
        return torch.where((inputs[0][..., 3] == 0)[..., None], torch.nan, output)

    layer.mlp_out.register_forward_hook(poison)
    rows = interventions.read(
        intervention_table(
            [[{**NEURON, "position": "all"}, {**NEURON, "component": "head", "units": [0]}]], [None]
        ),
        loaded.architecture,
        ROLES,
    )
    runner = executor.Executor(loaded, None, rows=100, memory=1 << 28)
    with pytest.raises(FloatingPointError, match=r"interventions 0 to 0: .*not finite"):
        [list(runner.run(block)) for block in runner.plan(pair_table(0, [(5, 5)]), rows)]


def planned(loaded) -> tuple[executor.Executor, list[planning.Block]]:
    runner = executor.Executor(loaded, None, rows=100, memory=1 << 28)
    rows = interventions.read(
        intervention_table([[NEURON], [{**NEURON, "layer": 0}]], [None] * 2),
        loaded.architecture,
        ROLES,
    )
    return runner, runner.plan(pair_table(0, [(5, 5)] * 2), rows)


def test_a_sound_model_passes_the_canary(kind: str):
    canary.check(*planned(subject(kind)))


def test_a_model_that_counts_its_tokens_is_run_by_whole_prompts(kind: str):
    """Such a layer does something else on one position than on five: restarting on the last one cannot be right."""
    loaded = subject(kind)
    runner, blocks = planned(loaded)
    last = loaded.architecture.layers[-1].block
    last.register_forward_pre_hook(lambda _, inputs: (inputs[0] + inputs[0].shape[1], *inputs[1:]))
    last.register_forward_pre_hook(
        lambda _, inputs: (
            inputs[0] * torch.linspace(1, inputs[0].shape[1], inputs[0].shape[-1]),
            *inputs[1:],
        )
    )
    assert runner.restarts
    canary.check(runner, blocks)
    assert not runner.restarts
    for block in blocks:
        [[one, *_], measured] = next(runner.run(block))
        plain = naive.logits(runner.fresh(block.pairs), one).max(-1).values
        np.testing.assert_allclose(measured.max_logit[0], plain.numpy(), rtol=1e-5)


def test_a_model_that_magnifies_rounding_passes_the_canary(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    """The last layer adds what is 10^6 times as steep as what it reads: float64 tells that from a mistake."""
    loaded = subject(kind)
    loaded.architecture.layers[-1].mlp_out.register_forward_hook(
        lambda _, inputs, out: out + torch.sin(1e6 * out)
    )
    runner, blocks = planned(loaded)
    canary.check(runner, blocks)
    monkeypatch.setattr(canary, "_only_rounding", lambda *_: False)
    canary.check(runner, blocks)
    assert not runner.restarts  # whole prompts magnify the same rounding
    monkeypatch.setattr(naive, "logits", lambda *_: torch.zeros(2, 140))
    with pytest.raises(canary.CanaryError, match="off those of plain forward passes"):
        canary.check(runner, blocks)


def test_a_silent_mlp_fails_the_canary(kind: str):
    loaded = subject(kind)
    layer = loaded.architecture.layers[-1]
    layer.mlp_out.weight.zero_()
    with pytest.raises(
        canary.CanaryError,
        match=r"zeroing the MLP of layer . at the last position changes no logit",
    ):
        canary.check(*planned(loaded))
