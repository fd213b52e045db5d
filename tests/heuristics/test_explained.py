"""Spectra and explained variance: planted maps of known waves and heuristics, and numpy's own ways of asking the same."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.heuristics import explained, spectra
from stages.heuristics.fourier.fit import SplitCells, explain, indicators, waves
from stages.heuristics.fourier.frequencies import FrequencyPairs, strongest
from stages.lib.core import environment
from stages.lib.core.hdf5_store import LayerWriter, writing
from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from tests.micro import ROOT, alone

SIDE, LIMIT, HELD_OUT = 40, 60, 0.2
OP1, OP2 = np.indices((SIDE, SIDE))
RESULTS = {"add": OP1 + OP2, "subtract": OP1 - OP2}
SHAPES = st.tuples(st.integers(1, 11), st.integers(1, 11)).filter(lambda shape: shape != (1, 1))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 10**6))
def test_pairs_are_all_frequencies_once_and_share_the_variance(shape: tuple[int, int], seed: int):
    pairs, (n1, n2) = FrequencyPairs.from_shape(shape), shape
    named = {(f % n1, g % n2) for f, g in pairs.frequencies} | {
        (-f % n1, -g % n2) for f, g in pairs.frequencies
    }
    assert named == {(f, g) for f in range(n1) for g in range(n2)} - {(0, 0)}
    assert len(pairs.frequencies) == sum(
        f <= -f % n1 if f != -f % n1 else g <= -g % n2 for f, g in named
    )
    assert all(
        0 <= 2 * f <= n1 and -n2 < 2 * g <= n2 and (g >= 0 or 2 * f % n1)
        for f, g in pairs.frequencies
    )
    maps = np.random.default_rng(seed).normal(size=(3, n1, n2))
    whole = np.abs(np.fft.fft2(maps)) ** 2
    found = pairs.powers(maps.astype(np.float32))
    for pair, (f, g) in enumerate(pairs.frequencies):
        both = {(f % n1, g % n2), (-f % n1, -g % n2)}
        np.testing.assert_allclose(
            found[:, pair], sum(whole[:, a, b] for a, b in both), rtol=1e-3, atol=1e-4
        )
    np.testing.assert_allclose(found.sum(1) / (n1 * n2) ** 2, maps.var(axis=(1, 2)), rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_a_wave_has_the_frequency_of_its_pair_and_no_other(
    shape: tuple[int, int], data: st.DataObject
):
    pairs = FrequencyPairs.from_shape(shape)
    op1, op2 = (axis.ravel() for axis in np.indices(shape))
    pair = data.draw(st.integers(0, len(pairs.frequencies) - 1))
    angle = 2 * np.pi * (pairs.frequencies[pair] / shape @ np.stack([op1, op2]))
    terms = pairs.waves(pair, op1, op2)
    np.testing.assert_allclose(
        terms, np.stack([np.cos(angle), np.sin(angle)])[: len(terms)], atol=1e-9
    )
    assert len(terms) == (1 if np.allclose(np.sin(angle), 0) else 2)
    powers = pairs.powers((terms.sum(0)).reshape(1, *shape).astype(np.float32))[0]
    assert powers[pair] / powers.sum() == pytest.approx(1, abs=1e-5)


def test_of_equal_powers_the_first_come_first():
    powers = np.array([1, 5, 2, 5, 5, 0], np.float32)
    assert strongest(powers, 2).tolist() == [1, 3]
    assert strongest(powers, 4).tolist() == [1, 3, 4, 2]
    assert strongest(powers, 99).tolist() == [1, 3, 4, 2, 0, 5]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(20, 200))
def test_explained_is_that_of_numpys_least_squares(seed: int, count: int, cells: int):
    """Heuristics with copies, opposites and empty ones among them: those add no free coefficient."""
    random = np.random.default_rng(seed)
    members = random.random((count, cells)) < random.choice([0, 0.1, 0.5], (count, 1))
    members = np.concatenate([members, ~members[:2], members[1:2]])
    values, training = random.normal(3, 1, cells) + 2 * members.sum(0), cells * 3 // 4
    terms = indicators(members)
    found = explain(terms, values, training)
    true, _, rank, _ = np.linalg.lstsq(terms[:, :training].T, values[:training])
    held_out = values[training:]
    error = ((held_out - true @ terms[:, training:]) ** 2).sum()
    assert found.terms == rank - 1
    assert found.share == pytest.approx(1 - error / (held_out.var() * len(held_out)), abs=1e-7)


def split(seed: int = 0) -> np.ndarray:
    return np.where(
        np.random.default_rng(seed).random((SIDE, SIDE)) < HELD_OUT, "held-out", "train"
    )


def triangle() -> SplitCells:
    """The cells of subtraction."""
    table = pl.DataFrame(
        {
            "op1": OP1[RESULTS["subtract"] >= 0],
            "op2": OP2[RESULTS["subtract"] >= 0],
            "split": split()[OP1 >= OP2],
        }
    )
    return SplitCells.from_table(table, np.where(OP1 >= OP2, OP1 - OP2, -1))


def test_planted_waves_are_found_also_where_cells_are_no_full_square():
    cells, pairs = triangle(), FrequencyPairs.from_shape((SIDE, SIDE))
    turn = 2 * np.pi / SIDE
    values = (
        3 * np.cos(turn * 4 * cells.op1 + 1)
        + np.sin(turn * (7 * cells.op1 - 7 * cells.op2))
        + 0.7 * np.cos(np.pi * (cells.op1 + cells.op2))
        + 5
    )
    terms = waves(values, cells, pairs, 5)
    assert len(terms) == 6
    fit = explain(terms, values, cells.training)
    assert (fit.terms, fit.share) == (5, pytest.approx(1, abs=1e-9))
    too_few = explain(waves(values, cells, pairs, 1), values, cells.training)
    assert too_few.terms == 2  # a wave has a cosine and a sine
    assert 0.8 < too_few.share < 0.95


def test_waves_are_chosen_without_a_look_at_held_out_cells():
    cells, pairs, random = (
        triangle(),
        FrequencyPairs.from_shape((SIDE, SIDE)),
        np.random.default_rng(1),
    )
    values = random.normal(size=len(cells.op1))
    other = np.concatenate(
        [values[: cells.training], random.normal(size=len(values) - cells.training)]
    )
    np.testing.assert_array_equal(waves(values, cells, pairs, 7), waves(other, cells, pairs, 7))


NEURONS = {  # what each neuron of the planted store does: numbers in the tests below
    "two heuristics": 0, "wave": 1, "noise": 2, "constant": 3, "votes": 4, "unlabelled": 5, "noisy": 6, "wave of the sum": 7,
}  # fmt: skip
MODULI = [f"op{which} mod 13 = {remainder}" for which in (1, 2) for remainder in range(13)]
LABELS = {
    "two heuristics": ["op1 mod 3 = 1", "op2 in 10..19"], "wave": ["op1 in 0..9"], "noise": MODULI, "constant": ["op1 = op2"],
    "votes": ["result in {3, 7}", "op1 = 5"], "noisy": ["mine", "result in 10..19"], "wave of the sum": ["op2 mod 2 = 0", "op2 mod 2 = 1"],
}  # fmt: skip


def planted() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Maps (op1, op2) of each neuron, and value logits (neuron, number): powers of two, exact in float16 times anything here."""
    random, turn = np.random.default_rng(2), 2 * np.pi / SIDE
    votes = 2.0 ** random.integers(-3, 4, (len(NEURONS), LIMIT + 1))
    sum_in = np.isin(OP1 + OP2, [3, 7])
    weights = votes[NEURONS["votes"]][np.minimum(OP1 + OP2, LIMIT)]
    maps = {
        "two heuristics": (OP1 % 3 == 1) + 2.0 * ((OP2 >= 10) & (OP2 < 20)) - 3,
        "wave": np.cos(turn * (3 * OP1 + 5 * OP2)),
        "noise": random.normal(size=(SIDE, SIDE)),
        "constant": np.full((SIDE, SIDE), -0.17),
        "votes": (4.0 * sum_in + 0.5) / weights,
        "unlabelled": random.normal(size=(SIDE, SIDE)),
        "noisy": (OP1 * OP2 % 2 == 0) + random.normal(size=(SIDE, SIDE)),
        "wave of the sum": np.sin(turn * 8 * (OP1 + OP2)) + 0.1 * (-1.0) ** OP2,
    }
    return maps, votes


def write_store(path: Path, operator: str, values: np.ndarray, results: np.ndarray) -> None:
    axes = dict(zip(("neuron", "op1", "op2"), values.shape, strict=True))
    with writing(path) as file:
        LayerWriter(
            file,
            [1],
            axes,
            "float16",
            (3, 15, SIDE),
            {"operator": operator},
            columns={"result": results},
        ).write(1, 0, values)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which both stages have run on the planted neurons; answers above LIMIT are cells, but none of this subject's."""
    folder = tmp_path_factory.mktemp("explained")
    data, (maps, votes) = folder / "data/s", planted()
    cells = []
    for chapter in ("corpus", "heuristics", "s/heuristics"):
        (folder / "data" / chapter).mkdir(parents=True)
    for operator, results in RESULTS.items():
        answered = np.where((results >= 0) & (results <= LIMIT), results, -1)
        write_store(
            data / f"store/activations/{operator}.h5",
            operator,
            np.stack([maps[name] for name in NEURONS]),
            answered,
        )
        of = results >= 0
        columns = {"op1": OP1[of], "op2": OP2[of], "result": results[of], "split": split()[of]}
        cells.append(
            pl.DataFrame(columns).with_columns(
                pl.lit(operator).alias("operator"), pl.col("op1", "op2").cast(pl.Int32)
            )
        )
    pl.concat(cells).sample(fraction=1, shuffle=True, seed=0).write_parquet(
        folder / "data/corpus/cells.parquet"
    )
    with writing(data / "store/value_logits.h5") as file:
        LayerWriter(
            file, [1], {"neuron": len(NEURONS), "number": LIMIT + 1}, "float32", (4, 61), {}
        ).write(1, 0, votes)
    mine = {
        "operator": ["add", "subtract"],
        "heuristic": "mine",
        "kind": "custom",
        "quantity": "custom",
        "predicate": "op1 * op2 % 2 = 0",
    }
    pl.DataFrame(mine).write_parquet(folder / "data/heuristics/heuristics.parquet")
    rows = [
        ("s", operator, 1, NEURONS[neuron], name, "result" if name.startswith("result") else name[:3], side)
        for operator in RESULTS for neuron, names in LABELS.items() for name in names for side in ("top", "bottom")
    ]  # fmt: skip
    names = ["subject", "operator", "layer", "neuron", "heuristic", "quantity", "side"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(data / "heuristics/labels.parquet")
    run(folder, 1, {"neurons_at_once": 3, "components": 4})
    return folder


def run(folder: Path, threads: int, of_spectra: dict) -> None:
    (folder / "params.yaml").write_text(yaml.safe_dump(alone("s") | {"spectra": of_spectra}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv(environment.WORKERS, str(threads))
        spectra.main("s")
        explained.main("s")


def shares(
    project: Path, neuron: str, operator: str = "add", of: str = "activation"
) -> dict[str, tuple[int, float]]:
    """theory -> its terms and what it explains."""
    table = pl.read_parquet(project / "data/s/heuristics/explained.parquet").filter(
        layer=1, neuron=NEURONS[neuron], operator=operator, map=of
    )
    return {
        theory: (terms, share)
        for theory, terms, share in table.select("theory", "terms", "explained").rows()
    }


@pytest.mark.parametrize("operator", RESULTS)
def test_a_sum_of_heuristics_is_explained_by_them_and_less_by_waves(project: Path, operator: str):
    found = shares(project, "two heuristics", operator)
    assert found["heuristics"] == (2, pytest.approx(1, abs=1e-6))
    assert found["fourier"][0] == 2
    assert 0.1 < found["fourier"][1] < 0.8


@pytest.mark.parametrize("operator", RESULTS)
def test_a_wave_is_explained_by_itself_and_less_by_heuristics(project: Path, operator: str):
    found = shares(project, "wave", operator)
    assert found["fourier"] == (2, pytest.approx(1, abs=1e-5))  # the store is float16
    assert found["heuristics"] == (1, pytest.approx(0, abs=0.1))


@pytest.mark.parametrize("operator", RESULTS)
def test_noise_is_not_explained_by_many_terms(project: Path, operator: str):
    """24 free coefficients: 13 remainders of each operand, one of which follows from the rest."""
    for terms, share in shares(project, "noise", operator).values():
        assert terms in (24, 25)
        assert -0.5 < share < 0.02


def test_labels_of_the_result_are_about_contributions(project: Path):
    """Value logits differ by factors of 64, so the activation alone is far from the planted contribution."""
    assert shares(project, "votes", of="contribution")["heuristics"] == (
        1,
        pytest.approx(1, abs=1e-5),
    )
    assert abs(shares(project, "votes", of="activation")["heuristics"][1]) < 0.1


def test_labels_that_follow_from_others_are_one_term(project: Path):
    found = shares(project, "wave of the sum")
    assert found["heuristics"] == (1, pytest.approx(0.02, abs=0.03))
    assert found["fourier"] == (2, pytest.approx(0.98, abs=0.02))


def test_what_does_not_vary_is_neither_explained_nor_a_wave(project: Path):
    assert {share for _, share in shares(project, "constant").values()} == {None}
    assert (
        NEURONS["constant"]
        not in pl.read_parquet(project / "data/s/heuristics/spectra.parquet")["neuron"]
    )


def test_what_explains_nothing_explains_zero_on_every_processor():
    """Rounding leaves some 1e-9 of it, above or below; what is explained keeps seven decimals."""
    rounded = [
        explained._rounded(share)
        for share in (-7.4e-10, 7.4e-10, np.nan, 0.12345678, -395.10266812)
    ]
    assert str(rounded) == "[0.0, 0.0, None, 0.1234568, -395.1026681]"


def test_neurons_without_labels_have_no_row(project: Path):
    assert shares(project, "unlabelled") == {}
    table = pl.read_parquet(project / "data/s/heuristics/explained.parquet")
    assert len(table) == 2 * 2 * (
        len(LABELS) + 2
    )  # two operators, two theories; two neurons have labels of both maps


def test_a_subject_without_labels_has_an_empty_table(project: Path, tmp_path: Path):
    shutil.copytree(project / "data", tmp_path / "data")
    labels = tmp_path / "data/s/heuristics/labels.parquet"
    pl.read_parquet(labels).clear().write_parquet(labels)
    run(tmp_path, 1, {"neurons_at_once": 3, "components": 1})
    table = pl.read_parquet(tmp_path / "data/s/heuristics/explained.parquet")
    assert (len(table), table.schema) == (
        0,
        pl.read_parquet(project / "data/s/heuristics/explained.parquet").schema,
    )


def test_the_table_agrees_with_numpy_on_what_sql_says(project: Path):
    """A neuron with noise, a predicate of the user's own and a range of the result, from the definition."""
    maps, votes = planted()
    neuron, add = NEURONS["noisy"], OP1 + OP2
    answered, training = add <= LIMIT, split() == "train"
    stored = maps["noisy"].astype(np.float16).astype(float)
    contribution = stored * votes[neuron][np.minimum(add, LIMIT)]
    for of, values, member in (
        ("activation", stored, OP1 * OP2 % 2 == 0),
        ("contribution", contribution, (add >= 10) & (add < 20)),
    ):
        train, held_out = answered & training, answered & ~training
        inside, outside = values[train & member].mean(), values[train & ~member].mean()
        error = (values - np.where(member, inside, outside))[held_out]
        expected = 1 - (error**2).sum() / ((values[held_out] - values[held_out].mean()) ** 2).sum()
        assert shares(project, "noisy", of=of)["heuristics"] == (
            1,
            pytest.approx(expected, abs=1e-6),
        )


def test_spectra_name_the_planted_waves(project: Path):
    table = pl.read_parquet(project / "data/s/heuristics/spectra.parquet").filter(
        operator="subtract", layer=1
    )
    columns = ["rank", "frequency1", "frequency2", "period1", "period2", "share"]
    [wave] = (
        table.filter(neuron=NEURONS["wave"]).select(columns).rows()
    )  # the whole grid: also where op1 < op2
    assert wave == (1, 3, 5, pytest.approx(40 / 3), 8, pytest.approx(1, abs=1e-6))
    first, second = table.filter(neuron=NEURONS["wave of the sum"]).select(columns).rows()
    assert first == (1, 8, 8, 5, 5, pytest.approx(0.5 / 0.51, abs=1e-3))
    assert second == (2, 0, 20, None, 2, pytest.approx(0.01 / 0.51, abs=1e-3))


def test_spectra_are_numpys_strongest(project: Path):
    maps, _ = planted()
    table = pl.read_parquet(project / "data/s/heuristics/spectra.parquet").filter(
        operator="add", neuron=NEURONS["noise"]
    )
    power = np.abs(np.fft.fft2(maps["noise"].astype(np.float16).astype(float))) ** 2
    power[0, 0] = 0
    largest = np.sort(power.ravel())[::-1][
        0:8:2
    ]  # noise: each of a pair once, none its own opposite
    np.testing.assert_allclose(table["share"], 2 * largest / power.sum(), rtol=1e-3)
    for f1, f2, share in table.select("frequency1", "frequency2", "share").rows():
        assert 2 * power[f1, f2] / power.sum() == pytest.approx(share, rel=1e-3)


def test_tables_are_as_documented_and_the_same_for_any_threads_and_blocks(project: Path):
    paths = {
        name: project / f"data/s/heuristics/{name}.parquet" for name in ("explained", "spectra")
    }
    before = {name: path.read_bytes() for name, path in paths.items()}
    database = Database({name: [path] for name, path in paths.items()}, threads=1)
    for name in paths:
        documented = tables(ROOT / "stages")[name].columns
        assert database.columns(name) == {column: kind for column, (kind, _) in documented.items()}
    run(project, 2, {"neurons_at_once": 1, "components": 4})  # one block is a constant neuron alone
    assert {name: path.read_bytes() for name, path in paths.items()} == before
