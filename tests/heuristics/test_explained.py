"""Fourier components and explained variance, on planted maps and against numpy."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics import explained, spectra
from stages.heuristics.fourier.fit import Fit, SplitCells, explain, indicators, waves
from stages.heuristics.fourier.frequencies import FrequencyPairs, strongest
from stages.lib.core import environment
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from tests.micro import ROOT, alone

SIDE, LIMIT, HELD_OUT = 40, 60, 0.2
TURN = 2 * np.pi / SIDE
OP1, OP2 = np.indices((SIDE, SIDE))
RESULTS = {"add": OP1 + OP2, "subtract": OP1 - OP2}
SHAPES = st.tuples(st.integers(1, 11), st.integers(1, 11)).filter(lambda shape: shape != (1, 1))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 10**6))
def test_pairs_are_all_frequencies_once_and_add_up_to_the_variance(
    shape: tuple[int, int], seed: int
):
    pairs, (n1, n2) = FrequencyPairs.from_shape(shape), shape
    f1, f2 = pairs.frequencies.T
    assert ((f1 >= 0) & (2 * f1 <= n1) & (2 * f2 > -n2) & (2 * f2 <= n2)).all()
    assert (f2[2 * f1 % n1 == 0] >= 0).all()
    # where both members of each pair are in numpy's fft2
    member, opposite = f1 % n1 * n2 + f2 % n2, -f1 % n1 * n2 + -f2 % n2
    assert {*member, *opposite} == set(range(1, n1 * n2))
    assert len({*member}) == len({*opposite}) == len(f1)
    is_own = member == opposite
    assert 2 * len(f1) - is_own.sum() == n1 * n2 - 1
    maps = np.random.default_rng(seed).normal(size=(3, n1, n2))
    whole = (np.abs(np.fft.fft2(maps)) ** 2).reshape(3, -1)
    powers = pairs.powers(maps.astype(np.float32))
    expected = whole[:, member] + np.where(is_own, 0, whole[:, opposite])
    np.testing.assert_allclose(powers, expected, rtol=1e-3, atol=1e-4)
    variance = maps.var(axis=(1, 2))
    np.testing.assert_allclose(powers.sum(1) / (n1 * n2) ** 2, variance, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_a_component_has_the_frequency_of_its_pair_alone(
    shape: tuple[int, int], data: st.DataObject
):
    pairs = FrequencyPairs.from_shape(shape)
    op1, op2 = np.indices(shape).reshape(2, -1)
    pair = data.draw(st.integers(0, len(pairs.frequencies) - 1))
    angle = 2 * np.pi * (pairs.frequencies[pair] / shape @ np.stack([op1, op2]))
    terms = pairs.waves(pair, op1, op2)
    expected = np.stack([np.cos(angle), np.sin(angle)])[: len(terms)]
    np.testing.assert_allclose(terms, expected, atol=1e-9)
    assert len(terms) == (1 if np.allclose(np.sin(angle), 0) else 2)
    powers = pairs.powers(terms.sum(0).reshape(1, *shape).astype(np.float32))[0]
    assert powers[pair] / powers.sum() == pytest.approx(1, abs=1e-5)


def test_of_equal_powers_the_first_come_first():
    powers = np.array([1, 5, 2, 5, 5, 0], np.float32)
    assert strongest(powers, 2).tolist() == [1, 3]
    assert strongest(powers, 4).tolist() == [1, 3, 4, 2]
    assert strongest(powers, 99).tolist() == [1, 3, 4, 2, 0, 5]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(20, 200))
def test_explained_is_that_of_numpys_least_squares(seed: int, count: int, cells: int):
    """Copies, opposites and empty heuristics add no free coefficient."""
    random = np.random.default_rng(seed)
    members = random.random((count, cells)) < random.choice([0, 0.1, 0.5], (count, 1))
    members = np.concatenate([members, ~members[:2], members[1:2]])
    values, training = random.normal(3, 1, cells) + 2 * members.sum(0), cells * 3 // 4
    terms = indicators(members)
    fit = explain(terms, values, training)
    coefficients, _, rank, _ = np.linalg.lstsq(terms[:, :training].T, values[:training])
    held_out = values[training:]
    error = ((held_out - coefficients @ terms[:, training:]) ** 2).sum()
    assert fit.terms == rank - 1
    assert fit.share == pytest.approx(1 - error / (held_out.var() * len(held_out)), abs=1e-7)


def split() -> np.ndarray:
    """The split of each prompt (op1, op2)."""
    random = np.random.default_rng(0)
    return np.where(random.random((SIDE, SIDE)) < HELD_OUT, "held-out", "train")


def triangle() -> SplitCells:
    """The cells of subtraction."""
    valid = OP1 >= OP2
    table = pl.DataFrame({"op1": OP1[valid], "op2": OP2[valid], "split": split()[valid]})
    return SplitCells.from_table(table, np.where(valid, OP1 - OP2, -1))


def test_planted_components_are_found_if_cells_are_not_a_whole_grid():
    cells, pairs = triangle(), FrequencyPairs.from_shape((SIDE, SIDE))
    op1, op2 = cells.op1, cells.op2
    values = 3 * np.cos(4 * TURN * op1 + 1) + np.sin(7 * TURN * (op1 - op2))
    values += 0.7 * np.cos(np.pi * (op1 + op2)) + 5
    terms = waves(values, cells, pairs, 5)
    assert len(terms) == 6
    assert explain(terms, values, cells.training) == Fit(5, pytest.approx(1, abs=1e-9))
    too_few = explain(waves(values, cells, pairs, 1), values, cells.training)
    assert too_few.terms == 2  # a component has a cosine and a sine
    assert 0.8 < too_few.share < 0.95


def test_components_do_not_depend_on_held_out_cells():
    cells, pairs = triangle(), FrequencyPairs.from_shape((SIDE, SIDE))
    values, other = np.random.default_rng(1).normal(size=(2, len(cells.op1)))
    other[: cells.training] = values[: cells.training]
    assert (values != other).any()
    terms = waves(values, cells, pairs, 7)
    np.testing.assert_array_equal(terms, waves(other, cells, pairs, 7))


NEURONS = (  # the planted neurons, in order
    "two heuristics",
    "wave",
    "noise",
    "constant",
    "contribution",
    "unlabelled",
    "noisy",
    "wave of the sum",
)
REMAINDERS = range(13)
LABELS = {
    "two heuristics": ["op1 mod 3 = 1", "op2 in 10..19"],
    "wave": ["op1 in 0..9"],
    "noise": [
        *(f"op1 mod 13 = {remainder}" for remainder in REMAINDERS),
        *(f"op2 mod 13 = {remainder}" for remainder in REMAINDERS),
    ],
    "constant": ["op1 = op2"],
    "contribution": ["result in {3, 7}", "op1 = 5"],
    "noisy": ["mine", "result in 10..19"],
    "wave of the sum": ["op2 mod 2 = 0", "op2 mod 2 = 1"],
}


def planted() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The neurons' maps (op1, op2), and value logits (neuron, result).

    Value logits are powers of two, whose products with float16 are exact.
    """
    random = np.random.default_rng(2)
    logits = 2.0 ** random.integers(-3, 4, (len(NEURONS), LIMIT + 1))
    own = logits[NEURONS.index("contribution")][np.minimum(OP1 + OP2, LIMIT)]
    noise, unlabelled, noisy = random.normal(size=(3, SIDE, SIDE))
    maps = {
        "two heuristics": (OP1 % 3 == 1) + 2.0 * ((OP2 >= 10) & (OP2 < 20)) - 3,
        "wave": np.cos(TURN * (3 * OP1 + 5 * OP2)),
        "noise": noise,
        "constant": np.full((SIDE, SIDE), -0.17),
        "contribution": (4.0 * np.isin(OP1 + OP2, [3, 7]) + 0.5) / own,
        "unlabelled": unlabelled,
        "noisy": (OP1 * OP2 % 2 == 0) + noisy,
        "wave of the sum": np.sin(TURN * 8 * (OP1 + OP2)) + 0.1 * (-1.0) ** OP2,
    }
    return maps, logits


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which both stages have run on the planted neurons.

    Answers above LIMIT are in the table of cells, but not in the model's store.
    """
    folder = tmp_path_factory.mktemp("explained")
    data, (maps, logits) = folder / "data/s", planted()
    (folder / "data/corpus").mkdir(parents=True)
    (folder / "data/heuristics").mkdir()
    (data / "heuristics").mkdir(parents=True)
    axes, shape = {"neuron": len(NEURONS), "op1": SIDE, "op2": SIDE}, (3, 15, SIDE)
    cells = []
    for operator, results in RESULTS.items():
        columns = {"result": np.where((results >= 0) & (results <= LIMIT), results, -1)}
        with writing(data / f"store/activations/{operator}.h5") as file:
            keys = {"operator": operator}
            writer = LayerWriter(file, [1], axes, "float16", shape, keys, columns=columns)
            writer.write(1, 0, np.stack(list(maps.values())))
        valid = results >= 0
        values = OP1[valid], OP2[valid], results[valid], split()[valid]
        rows = pl.DataFrame(dict(zip(("op1", "op2", "result", "split"), values, strict=True)))
        cells.append(
            rows.with_columns(pl.col("op1", "op2").cast(pl.Int32), operator=pl.lit(operator))
        )
    shuffled = pl.concat(cells).sample(fraction=1, shuffle=True, seed=0)
    shuffled.write_parquet(folder / "data/corpus/cells.parquet")
    with writing(data / "store/value_logits.h5") as file:
        axes = {"neuron": len(NEURONS), "number": LIMIT + 1}
        LayerWriter(file, [1], axes, "float32", (4, 61), {}).write(1, 0, logits)
    mine = {"heuristic": "mine", "kind": "custom", "quantity": "custom"}
    catalogue = {"operator": [*RESULTS], **mine, "predicate": "op1 * op2 % 2 = 0"}
    pl.DataFrame(catalogue).write_parquet(folder / "data/heuristics/heuristics.parquet")
    labels().write_parquet(data / "heuristics/labels.parquet")
    run(folder, 1, {"neurons_at_once": 3, "components": 4})
    return folder


def labels() -> pl.DataFrame:
    """The labels of the planted neurons, on both sides of their maps."""
    rows = []
    for operator in RESULTS:
        for neuron, names in LABELS.items():
            for name in names:
                quantity = name.split()[0]
                heuristic = "s", operator, 1, NEURONS.index(neuron), name, quantity
                rows += [(*heuristic, "top"), (*heuristic, "bottom")]
    columns = ["subject", "operator", "layer", "neuron", "heuristic", "quantity", "side"]
    return pl.DataFrame(rows, columns, orient="row")


def run(folder: Path, threads: int, settings: dict) -> None:
    """Run both stages in a folder; settings: of the section spectra."""
    (folder / "params.yaml").write_text(yaml.safe_dump(alone("s") | {"spectra": settings}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv(environment.WORKERS, str(threads))
        spectra.main("s")
        explained.main("s")


def stored(project: Path, table: str, neuron: str, operator: str = "add") -> pl.DataFrame:
    """The rows of one planted neuron."""
    rows = pl.read_parquet(project / f"data/s/heuristics/{table}.parquet")
    return rows.filter(layer=1, neuron=NEURONS.index(neuron), operator=operator)


def shares(
    project: Path, neuron: str, operator: str = "add", which: str = "activation"
) -> dict[str, list]:
    """Return theory -> its terms and the explained share; which: the map."""
    rows = stored(project, "explained", neuron, operator).filter(map=which)
    return {theory: rest for theory, *rest in rows.select("theory", "terms", "explained").rows()}


@pytest.mark.parametrize("operator", RESULTS)
def test_heuristics_explain_their_sum_and_components_less(project: Path, operator: str):
    theories = shares(project, "two heuristics", operator)
    assert theories["heuristics"] == [2, pytest.approx(1, abs=1e-6)]
    terms, share = theories["fourier"]
    assert terms == 2
    assert 0.1 < share < 0.8


@pytest.mark.parametrize("operator", RESULTS)
def test_a_component_explains_itself_and_heuristics_less(project: Path, operator: str):
    theories = shares(project, "wave", operator)
    assert theories["fourier"] == [2, pytest.approx(1, abs=1e-5)]  # the store is float16
    assert theories["heuristics"] == [1, pytest.approx(0, abs=0.1)]


@pytest.mark.parametrize("operator", RESULTS)
def test_many_terms_do_not_explain_noise(project: Path, operator: str):
    """24 free coefficients: 13 remainders of each operand, one of which follows from the rest."""
    theories = shares(project, "noise", operator)
    assert set(theories) == {"heuristics", "fourier"}
    for terms, share in theories.values():
        assert terms in (24, 25)
        assert -0.5 < share < 0.02


def test_labels_of_the_result_explain_contributions(project: Path):
    """Value logits differ by factors of 64, so the activation is far from the contribution."""
    theories = shares(project, "contribution", which="contribution")
    assert theories["heuristics"] == [1, pytest.approx(1, abs=1e-5)]
    _, share = shares(project, "contribution")["heuristics"]
    assert abs(share) < 0.1


def test_a_label_that_follows_from_others_adds_no_term(project: Path):
    theories = shares(project, "wave of the sum")
    assert theories["heuristics"] == [1, pytest.approx(0.02, abs=0.03)]
    assert theories["fourier"] == [2, pytest.approx(0.98, abs=0.02)]


def test_a_constant_map_is_not_explained_and_has_no_component(project: Path):
    assert stored(project, "explained", "constant")["explained"].to_list() == [None, None]
    assert stored(project, "spectra", "constant").is_empty()
    assert len(stored(project, "spectra", "noise")) == 4


def test_an_explained_share_of_zero_is_zero_on_every_processor():
    """Rounding leaves some 1e-9 of it, above or below. The table has seven decimals."""
    shares = (-7.4e-10, 7.4e-10, np.nan, 0.12345678, -395.10266812)
    expected = "[0.0, 0.0, None, 0.1234568, -395.1026681]"
    assert str(list(map(explained._rounded, shares))) == expected


def test_neurons_without_labels_have_no_row(project: Path):
    assert stored(project, "explained", "unlabelled").is_empty()
    table = pl.read_parquet(project / "data/s/heuristics/explained.parquet")
    # two operators, two theories; two neurons have labels of both maps
    assert len(table) == 2 * 2 * (len(LABELS) + 2)


def test_a_model_without_labels_has_an_empty_table(project: Path, tmp_path: Path):
    shutil.copytree(project / "data", tmp_path / "data")
    labels().clear().write_parquet(tmp_path / "data/s/heuristics/labels.parquet")
    run(tmp_path, 1, {"neurons_at_once": 3, "components": 1})
    file = "data/s/heuristics/explained.parquet"
    empty, usual = pl.read_parquet(tmp_path / file), pl.read_parquet(project / file)
    assert empty.is_empty()
    assert empty.schema == usual.schema


@pytest.mark.parametrize("which", ["activation", "contribution"])
def test_explained_agrees_with_its_definition(project: Path, which: str):
    """A noisy neuron with a custom heuristic and a range of the result."""
    maps, logits = planted()
    result, in_training = OP1 + OP2, split() == "train"
    values, inside = maps["noisy"].astype(np.float16).astype(float), OP1 * OP2 % 2 == 0
    if which == "contribution":
        values *= logits[NEURONS.index("noisy")][np.minimum(result, LIMIT)]
        inside = (result >= 10) & (result < 20)
    train, held_out = (result <= LIMIT) & in_training, (result <= LIMIT) & ~in_training
    means = values[train & inside].mean(), values[train & ~inside].mean()
    error = (values - np.where(inside, *means))[held_out]
    expected = 1 - (error**2).mean() / values[held_out].var()
    theories = shares(project, "noisy", which=which)
    assert theories["heuristics"] == [1, pytest.approx(expected, abs=1e-6)]


def test_spectra_name_the_planted_components(project: Path):
    columns = ["rank", "frequency1", "frequency2", "period1", "period2", "share"]
    # the whole grid, also where op1 < op2
    wave = stored(project, "spectra", "wave", "subtract")
    all_of_it = pytest.approx(1, abs=1e-6)
    assert wave[columns].rows() == [(1, 3, 5, pytest.approx(40 / 3), 8, all_of_it)]
    both = stored(project, "spectra", "wave of the sum", "subtract")
    first, second = (pytest.approx(power / 0.51, abs=1e-3) for power in (0.5, 0.01))
    assert both[columns].rows() == [(1, 8, 8, 5, 5, first), (2, 0, 20, None, 2, second)]


def test_spectra_are_numpys_strongest(project: Path):
    maps, _ = planted()
    table = stored(project, "spectra", "noise")
    power = np.abs(np.fft.fft2(maps["noise"].astype(np.float16).astype(float))) ** 2
    power[0, 0] = 0
    share = 2 * power / power.sum()  # none of the strongest is its own opposite
    largest = np.sort(share.ravel())[::-1][0:8:2]  # the members of a pair are equal
    np.testing.assert_allclose(table["share"], largest, rtol=1e-3)
    np.testing.assert_allclose(
        table["share"], share[table["frequency1"], table["frequency2"]], rtol=1e-3
    )


def test_tables_are_as_documented_and_the_same_for_any_threads_and_blocks(project: Path):
    folder = project / "data/s/heuristics"
    paths = {name: folder / f"{name}.parquet" for name in ("explained", "spectra")}
    before = {name: path.read_bytes() for name, path in paths.items()}
    database = Database({name: [path] for name, path in paths.items()}, threads=1)
    for name in paths:
        documented = tables(ROOT / "stages")[name].columns
        types = {column: kind for column, (kind, _) in documented.items()}
        assert database.columns(name) == types
    # one block is a constant neuron alone
    run(project, 2, {"neurons_at_once": 1, "components": 4})
    assert {name: path.read_bytes() for name, path in paths.items()} == before
