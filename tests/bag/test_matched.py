"""Check that variances of matched neurons are near, against all choices of other neurons."""

from itertools import combinations, product

import numpy as np
import polars as pl

from stages.bag import digit_means
from tests.bag.knocked import EVEN, standing
from tests.made import Tables, ask, frame

LAYERS, NEURONS = 60, 10


def sums(stds: np.ndarray) -> pl.DataFrame:
    """Return the table neuron_sums of an operator. stds: (layers, neurons)."""
    layers, neurons = np.indices(stds.shape).reshape(2, -1)
    columns = {"layer": layers, "neuron": neurons, "variance": stds.ravel() ** 2}
    return frame(subject="s", operator="add", cells=100, **columns)


def tables(stds: np.ndarray, members: np.ndarray) -> Tables:
    """Return what the query reads. members: bool (layers, neurons), which have a heuristic."""
    rows = [("add", layer, neuron, EVEN) for layer, neuron in np.argwhere(members).tolist()]
    return {
        "neuron_sums": sums(stds),
        "heuristic_neurons": standing(rows, "fdr"),
        "digit_means": pl.DataFrame(schema=digit_means.SCHEMA),
    }


def test_matched_neurons_are_as_near_as_all_neurons_of_a_layer_can_have_them():
    """Layers have 1 to 4 neurons with a heuristic; in odd layers these vary more than others."""
    random = np.random.default_rng(0)
    stds = random.exponential(size=(LAYERS, NEURONS))
    members = np.zeros((LAYERS, NEURONS), bool)
    for layer, row in enumerate(members):
        row[random.permutation(NEURONS)[: 1 + layer // 2 % 4]] = True
    odd = stds[1::2]
    odd[members[1::2]] += 1
    table = ask("matched_neurons", tables(stds, members), steered_neurons=[1])
    distances = []
    for layer in range(LAYERS):
        rows = table.filter(layer=layer).sort("std")
        own, others = np.sort(stds[layer, members[layer]]), np.sort(stds[layer, ~members[layer]])
        np.testing.assert_allclose(rows["std"], own)
        partners, partner_stds = rows["matched"].to_numpy(), rows["matched_std"].to_numpy()
        np.testing.assert_allclose(stds[layer, partners], partner_stds)
        assert not members[layer, partners].any()
        nearest = np.abs(others - own[:, None]).argmin(axis=1)
        ranks = np.abs(others - partner_stds[:, None]).argmin(axis=1)
        assert (np.diff(ranks) > 0).all()
        choices = np.array(list(combinations(range(len(others)), len(own))))
        least = np.abs(choices - nearest).max(axis=1).min()
        assert np.abs(ranks - nearest).max() == least
        distances.append(least)
    assert {0, 1, 2} <= set(distances)
    assert set(table["neurons"]) == {members.sum()}


def test_a_set_with_most_of_a_layer_has_matched_neurons_for_those_that_vary_most():
    stds = np.arange(1.0, NEURONS + 1)[None]
    table = ask("matched_neurons", tables(stds, stds > 3), steered_neurons=[1]).sort("std")
    assert table["matched"].to_list() == [None] * 4 + [0, 1, 2]
    assert table["matched_std"].to_list() == [None] * 4 + [1, 2, 3]
    assert set(table["neurons"]) == {7}


def test_separating_neurons_of_each_number_have_matched_neurons_of_their_own():
    random = np.random.default_rng(1)
    shares = random.random((2, 2, NEURONS)).round(3)  # by place and layer
    rows = []
    for (number, place), layer in product(enumerate(("ones", "carry")), range(2)):
        values = shares[number, layer].tolist()
        for digit in range(2):
            rows.append(("s", "add", place, layer, digit, 5, [0.0] * NEURONS, values))
    given = tables(random.exponential(size=(2, NEURONS)), np.zeros((2, NEURONS), bool))
    means = pl.DataFrame(rows, schema=digit_means.SCHEMA, orient="row", strict=False)
    table = ask("matched_neurons", given | {"digit_means": means}, steered_neurons=[3, 5, 99, 999])
    assert set(table.select("arm", "criterion").rows()) == {("separating", None)}
    for number, place in enumerate(("ones", "carry")):
        order = np.argsort(-shares[number].ravel(), kind="stable")
        sets = table.filter(place=place)
        assert set(sets["neurons"]) == {3, 5, 2 * NEURONS}
        assert sets.filter(neurons=2 * NEURONS)["matched"].null_count() == 2 * NEURONS
        for size in (3, 5):
            part = sets.filter(neurons=size)
            best = zip(*np.divmod(order[:size], NEURONS), strict=True)
            own = set(part.select("layer", "neuron").rows())
            assert own == {(int(layer), int(neuron)) for layer, neuron in best}
            partners = set(part.select("layer", "matched").rows())
            assert len(partners) == size
            assert not own & partners
