"""The planted model computes what its table of truth says, also with heuristics ablated."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.core.settings import ParamsError, check
from stages.lib.dictionary import tables
from stages.lib.heuristics.names import parse
from stages.lib.model import value_logits
from stages.lib.sql.database import Database
from stages.subjects.planted.model import ADD, SUBTRACT, coefficients, four_squares, kinks
from stages.subjects.planted.neurons import PlantingError
from stages.subjects.settings import Planted
from tests.micro import ROOT
from tests.subjects.grown import PLANTED, SYMBOLS, Grown, digests, grow


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return grow(tmp_path_factory.mktemp("planted") / "micro")


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_kinks_add_up_to_any_function(largest: int, random):
    bends = kinks(largest)
    for quantity, end in (("op1", largest), ("result", 2 * largest)):
        values = np.array([random.randint(-9, 9) for _ in range(end + 1)], float)
        ranges = {None: (0, end)}
        if quantity == "result":
            ranges = {ADD: (0, end), SUBTRACT: (-largest, largest)}
        for operator, (least, most) in ranges.items():
            numbers = np.arange(least, most + 1)
            total = np.zeros(len(numbers))
            for i, factor in coefficients(quantity, values, bends):
                if bends[i].quantity == "constant":
                    total += factor
                elif bends[i].operator == operator:
                    total += factor * np.maximum(numbers - bends[i].at, 0)
            assert not total[numbers < 0].any()
            assert total[numbers >= 0].tolist() == values[: most + 1].tolist()


@given(st.integers(0, 1 << 22))
def test_every_number_is_four_squares(number: int):
    squares = four_squares(number)
    assert (len(squares), sum(s * s for s in squares)) == (4, number)


@pytest.mark.parametrize(("largest_operand", "largest_answer"), [(19, 99), (30, 40)])
def test_it_answers_every_cell(tmp_path: Path, largest_operand: int, largest_answer: int):
    grown = grow(tmp_path / "p", largest_operand, largest_answer)
    answers, _ = grown.run()
    assert torch.equal(answers, grown.answers)
    numbers = list(map(str, range(largest_answer + 1)))
    tokens = grown.tokenizer.convert_tokens_to_ids(numbers)
    assert tokens == list(range(3, largest_answer + 4))


def test_other_prompts_give_finite_logits(grown: Grown):
    for prompt in (
        "Q: How much is 3 plus 99? A:",
        "3*4=",
        "(7 - 2) + 1 =",
        "The capital of Bade is",
        "I have 30 pears and 2 cars. " * 5,
    ):
        tokens = torch.tensor([grown.tokenizer(prompt)["input_ids"]])
        assert torch.isfinite(grown.loaded.model(input_ids=tokens).logits).all()


def test_exact_neurons_are_their_predicate(grown: Grown):
    seen = set()
    for [name], activations, [satisfied], _ in grown.planted("exact"):
        np.testing.assert_allclose(activations, satisfied, atol=1e-3)
        # stored as float16, cells without the heuristic then have no order
        assert np.abs(activations[~satisfied]).max() < 1e-10
        assert satisfied.any()
        seen.add((parse(name).kind, parse(name).quantity))
    assert {kind for kind, _ in seen} == {"range", "modulo", "pattern"}
    assert {quantity for _, quantity in seen} == {"op1", "op2", "result"}


def test_partial_neurons_lack_that_share_of_the_values(grown: Grown):
    for noise in PLANTED["noises"]:
        missing = []
        for [name], activations, [satisfied], cells in grown.planted("partial", noise):
            assert set(activations.round(3)) <= {0, 1}
            assert not activations[~satisfied].round(3).any()
            quantity = parse(name).quantity
            on = pl.Series(activations > 0.5)
            values = grown.cells.filter(cells).select(quantity, on=on).filter(satisfied).unique()
            assert values[quantity].is_unique().all()  # all cells of a value or none
            missing.append(1 - values["on"].mean())
        assert np.mean(missing) == pytest.approx(noise, abs=0.12)


def test_soft_neurons_are_off_by_their_noise(grown: Grown):
    for noise in PLANTED["noises"]:
        errors = []
        for [name], activations, [satisfied], _ in grown.planted("soft", noise):
            if parse(name).kind != "range":  # a range has ramps, too
                errors.append(activations - satisfied)
        assert np.concatenate(errors).std() == pytest.approx(noise / 2, rel=0.35)


def test_mixtures_are_sums_of_two_heuristics_of_different_quantities(grown: Grown):
    two = 0
    for names, activations, satisfied, _ in grown.planted("mixture"):
        np.testing.assert_allclose(activations, np.sum(satisfied, 0), atol=1e-3)
        assert len({parse(name).quantity for name in names}) == len(names)
        two += len(names) == 2
    assert two >= PLANTED["neurons"]["mixture"]


def test_noise_neurons_differ_and_have_no_heuristic(grown: Grown):
    for operator in SYMBOLS:
        rows = grown.truth.filter(grade="noise", operator=operator)
        cells = (grown.cells["operator"] == operator).to_numpy()
        columns = grown.activations[cells][:, rows["neuron"].to_numpy()]
        assert rows["heuristic"].null_count() == len(rows) >= PLANTED["neurons"]["noise"]
        assert np.abs(np.corrcoef(columns.T) - np.eye(len(rows))).max() < 0.98
        assert 0.5 < columns.std() < 2


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_ablating_a_heuristic_breaks_exactly_its_prompts(grown: Grown, by: str):
    votes = grown.truth.filter("votes")
    names = sorted(set(votes["heuristic"]))
    unknown = grown.tokenizer.unk_token_id
    for name, associated in zip(names, grown.satisfied(names).T, strict=True):
        neurons = sorted(set(votes.filter(heuristic=name)["neuron"]))
        assert len(neurons) == PLANTED["copies"]
        values = torch.zeros(len(grown.cells)) if by == "zero" else _means(grown, associated)
        answers, _ = grown.run(neurons, values[:, None])
        expected = torch.where(torch.from_numpy(associated), unknown, grown.answers)
        assert torch.equal(answers, expected), name


def _means(grown: Grown, satisfied: np.ndarray) -> torch.Tensor:
    """The mean of a result heuristic over the whole operand grid of each cell's operator.

    satisfied: which cells satisfy the heuristic.
    """
    operands = np.arange(grown.cells["op1"].max() + 1)
    results = grown.cells["result"].filter(pl.Series(satisfied)).unique().to_numpy()
    means = {
        "add": float(np.isin(operands[:, None] + operands, results).mean()),
        "subtract": float(np.isin(operands[:, None] - operands, results).mean()),
    }
    return torch.tensor(grown.cells["operator"].replace_strict(means).to_list())


def test_ablating_all_other_neurons_breaks_nothing(grown: Grown):
    answers, _ = grown.run(sorted(set(grown.truth.filter(~pl.col("votes"))["neuron"])))
    assert torch.equal(answers, grown.answers)


def test_value_vectors_of_result_heuristics_name_their_results(grown: Grown):
    numbers = np.arange(39)
    logits = list(value_logits.value_logits(grown.loaded, (numbers + 3).tolist()))[1]
    of_result = pl.col("heuristic").str.starts_with("result")
    named = grown.truth.filter(of_result, pl.col("grade") != "mixture", operator="add")
    for neuron, name in named.select("neuron", "heuristic").rows():
        satisfied = np.isin(numbers, grown.cells.filter(grown.satisfied([name])[:, 0])["result"])
        assert logits[neuron][satisfied].min() > logits[neuron][~satisfied].max(), name
        assert np.ptp(logits[neuron][satisfied]) < 1e-3 * np.ptp(logits[neuron])


def test_the_truth_has_the_columns_of_its_header(grown: Grown):
    documented = tables(ROOT / "stages")["planted_truth"].columns
    path = grown.folder / "data/subjects/planted_truth.parquet"
    columns = Database({"planted_truth": [path]}, threads=1).columns("planted_truth")
    assert list(columns.items()) == [(name, kind) for name, (kind, _) in documented.items()]
    keys = ["layer", "neuron", "operator", "heuristic"]
    assert grown.truth.select(keys).equals(grown.truth.select(keys).unique().sort(keys))


def test_the_same_seed_gives_the_same_bytes(grown: Grown, tmp_path: Path):
    expected = digests(grown.folder / "data")
    assert digests(grow(tmp_path / "again").folder / "data") == expected
    other = digests(grow(tmp_path / "other", seed=1).folder / "data")
    weights = "models/planted/model.safetensors"
    assert other[weights] != expected[weights]


def test_more_neurons_than_heuristics_are_refused(tmp_path: Path):
    with pytest.raises(PlantingError, match=r"planted\.neurons"):
        grow(tmp_path / "p", neurons={"exact": 5000})


def test_shares_that_leave_nothing_are_refused():
    with pytest.raises(ParamsError, match=r"smallest_share is 0\.7"):
        check(Planted, {**PLANTED, "smallest_share": 0.7}, "planted")
