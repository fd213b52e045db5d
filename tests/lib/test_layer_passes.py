"""Check the estimate of the work that is left, on which progress bars of runs depend."""

from itertools import accumulate, chain

import pytest
from torch.utils.flop_counter import FlopCounterMode

from stages.lib.executor import executor, layer_passes
from stages.lib.model import checkpoint, search
from tests.conftest import random_model
from tests.lib.test_executor import PLACES, pair_table
from tests.lib.test_places import patches, read

LAYERS = 8
SWEEPS = {
    "heads and MLPs": [("mlp", None), ("head", None), ("head", [1])],
    "neurons": [("neuron", [5]), ("neuron", [7])],
}


@pytest.mark.parametrize("components", SWEEPS.values(), ids=SWEEPS)
def test_after_a_tenth_the_work_left_is_known(
    components: list[tuple[str, list[int] | None]], monkeypatch: pytest.MonkeyPatch
):
    """The bar: within a factor of 1.5. Work is counted in floating-point operations, not seconds.

    Runs are in the order of their blocks. By the number of runs, the factor would be larger.
    """
    monkeypatch.setattr(layer_passes, "MEASURED", 0)  # what costs no matrix product
    model = random_model("llama", num_hidden_layers=LAYERS)
    loaded = checkpoint.Checkpoint(model, search.find(model))
    table = pair_table(21, [(8, 8)] * 3 + [(5, 5)] * 3)
    runner = executor.Executor(loaded, None, rows=24, memory=1 << 28)
    listed = [patches(name, PLACES[1:], units, LAYERS) for name, units in components]
    operations, passes, runs = [], [], []
    counter = layer_passes.LayerPasses.for_model(loaded.architecture)
    for block in runner.plan(table, read(loaded, [*chain.from_iterable(listed)])):
        runner.values(block.pairs)
        with FlopCounterMode(display=False) as counted:
            for _ in runner.run(block):
                pass
        operations.append(counted.get_total_flops())
        passes.append(counter.count(block.pairs, block.interventions))
        runs.append(sum(bool(i.patches) for i in block.interventions) * len(block.pairs))
    assert max(factors(passes, operations)) < 1.5
    assert max(factors(runs, operations)) > 1.5


def factors(estimated: list[int], spent: list[int]) -> list[float]:
    """Return by how much the work left is over- or underestimated, from a tenth of it on.

    It is estimated from what is left of `estimated`, at the pace so far.
    """
    both = zip(accumulate(estimated), accumulate(spent), strict=True)
    wrong = []
    for done, used in both:
        if 0.1 * sum(spent) <= used < sum(spent):
            expected = (sum(estimated) - done) * used / done
            ratio = expected / (sum(spent) - used)
            wrong.append(max(ratio, 1 / max(ratio, 1e-9)))
    assert wrong
    return wrong


@pytest.mark.parametrize(
    ("component", "units", "position", "passed"),
    [
        ("residual", None, "2", 6 * 4),  # from token 2 of 8 on, through four layers
        ("head", [0], "7", 1 * 4),
        ("mlp", None, "7", 1 * 3),  # its change is added after its layer
        ("neuron", [0], "3", 5 * 3),
    ],
)
def test_a_run_counts_the_tokens_and_layers_that_it_computes(
    component: str, units: list[int] | None, position: str, passed: int
):
    """The unembedding counts as one layer here. A run that changes nothing is no work."""
    model = random_model("llama")
    loaded = checkpoint.Checkpoint(model, search.find(model))
    runner = executor.Executor(loaded, None, rows=64, memory=1 << 28)
    [pairs] = runner.sizes.groups(pair_table(22, [(8, 8)] * 2))
    listed = read(loaded, [*patches(component, [position], units, layers=1), []])
    counter = layer_passes.LayerPasses(layers=4, unembedding=1.0)
    assert counter.count(pairs, listed) == 2 * (passed + 1 + layer_passes.MEASURED)
