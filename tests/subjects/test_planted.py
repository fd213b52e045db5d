"""The planted subject does what its truth says: every neuron, every answer, and what is left when a heuristic is knocked out."""

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
from stages.subjects.planted.model import coefficients, four_squares, kinks
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
        for operator in (0, 1) if quantity == "result" else (None,):
            numbers = np.arange(
                -largest if operator == 1 else 0, (largest if operator == 1 else end) + 1
            )
            total = np.zeros(len(numbers))
            for i, factor in coefficients(quantity, values, bends):
                if bends[i].operator == operator or bends[i].quantity == "constant":
                    total += factor * (
                        1 if bends[i].quantity == "constant" else np.maximum(numbers - bends[i].at, 0)
                    )
            assert total.tolist() == [values[n] if n >= 0 else 0 for n in numbers]


@given(st.integers(0, 1 << 22))
def test_every_number_is_four_squares(number: int):
    squares = four_squares(number)
    assert (len(squares), sum(s * s for s in squares)) == (4, number)


@pytest.mark.parametrize(("largest_operand", "largest_answer"), [(19, 99), (30, 40)])
def test_it_answers_every_cell(tmp_path: Path, largest_operand: int, largest_answer: int):
    grown = grow(tmp_path / "p", largest_operand, largest_answer)
    answers, _ = grown.run()
    assert torch.equal(answers, grown.answers)
    assert grown.tokenizer.convert_tokens_to_ids(
        [str(n) for n in range(largest_answer + 1)]
    ) == list(range(3, largest_answer + 4))


def test_other_prompts_give_finite_logits(grown: Grown):
    for prompt in (
        "Q: How much is 3 plus 99? A:",
        "3*4=",
        "(7 - 2) + 1 =",
        "The capital of Bade is",
        "I have 30 pears and 2 cars. " * 5,
    ):
        assert torch.isfinite(
            grown.loaded.model(
                input_ids=torch.tensor([grown.tokenizer(prompt)["input_ids"]])
            ).logits
        ).all()


def test_exact_neurons_are_their_predicate(grown: Grown):
    seen = set()
    for [name], activations, [satisfied], _ in grown.planted("exact"):
        np.testing.assert_allclose(activations, satisfied, atol=1e-3)
        assert (
            np.abs(activations[~satisfied]).max() < 1e-10
        )  # so that, as stored, cells without it have no order
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
            values = (
                grown.cells.filter(cells)
                .select(pl.col(parse(name).quantity), on=pl.Series(activations > 0.5))
                .filter(satisfied)
            )
            assert (
                values.unique().group_by(parse(name).quantity).len()["len"].max() == 1
            )  # all cells of a value or none
            missing.append(1 - values.unique()["on"].mean())
        assert np.mean(missing) == pytest.approx(noise, abs=0.12)


def test_soft_neurons_are_off_by_their_noise(grown: Grown):
    for noise in PLANTED["noises"]:
        off = [
            activations - satisfied
            for [name], activations, [satisfied], _ in grown.planted("soft", noise)
            if parse(name).kind != "range"  # a range has ramps besides
        ]
        assert np.concatenate(off).std() == pytest.approx(noise / 2, rel=0.35)


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
        columns = grown.activations[:, rows["neuron"].to_numpy()][
            (grown.cells["operator"] == operator).to_numpy()
        ]
        assert rows["heuristic"].null_count() == len(rows) >= PLANTED["neurons"]["noise"]
        assert np.abs(np.corrcoef(columns.T) - np.eye(len(rows))).max() < 0.98
        assert 0.5 < columns.std() < 2


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_a_heuristic_knocked_out_breaks_exactly_its_prompts(grown: Grown, by: str):
    votes = grown.truth.filter("votes")
    names = sorted(set(votes["heuristic"]))
    assert [len(set(votes.filter(heuristic=name)["neuron"])) for name in names] == [
        PLANTED["copies"]
    ] * len(names)
    unknown = grown.tokenizer.unk_token_id
    for name, associated in zip(names, grown.satisfied(names).T, strict=True):
        neurons = sorted(set(votes.filter(heuristic=name)["neuron"]))
        values = torch.zeros(len(grown.cells)) if by == "zero" else _means_over_squares(grown, name)
        answers, _ = grown.run(neurons, values[:, None])
        assert torch.equal(
            answers, torch.where(torch.from_numpy(associated), unknown, grown.answers)
        ), name


def _means_over_squares(grown: Grown, name: str) -> torch.Tensor:
    """The mean of a result heuristic over all operands of each cell's operator, answers or not."""
    operands = np.arange(grown.cells["op1"].max() + 1)
    planted = (
        grown.cells.select("result", on=pl.Series(grown.satisfied([name])[:, 0]))
        .filter("on")["result"]
        .unique()
        .to_numpy()
    )
    means = {
        o: float(np.isin(operands[:, None] + sign * operands, planted).mean())
        for o, sign in (("add", 1), ("subtract", -1))
    }
    return torch.tensor(grown.cells["operator"].replace_strict(means).to_list())


def test_all_others_knocked_out_break_nothing(grown: Grown):
    answers, _ = grown.run(sorted(set(grown.truth.filter(~pl.col("votes"))["neuron"])))
    assert torch.equal(answers, grown.answers)


def test_value_vectors_of_result_heuristics_name_their_results(grown: Grown):
    numbers = np.arange(39)
    logits = list(value_logits.value_logits(grown.loaded, [int(n) + 3 for n in numbers]))[1]
    named = grown.truth.filter(
        pl.col("heuristic").str.starts_with("result"), pl.col("grade") != "mixture", operator="add"
    )
    for neuron, name in named.select("neuron", "heuristic").rows():
        satisfied = np.isin(numbers, grown.cells.filter(grown.satisfied([name])[:, 0])["result"])
        assert logits[neuron][satisfied].min() > logits[neuron][~satisfied].max(), name
        assert np.ptp(logits[neuron][satisfied]) < 1e-3 * np.ptp(logits[neuron])


def test_the_truth_has_the_columns_of_its_header(grown: Grown):
    documented = [
        (name, kind) for name, (kind, _) in tables(ROOT / "stages")["planted_truth"].columns.items()
    ]
    found = Database(
        {"planted_truth": [grown.folder / "data/subjects/planted_truth.parquet"]}, threads=1
    ).columns("planted_truth")
    assert list(found.items()) == documented
    keys = ["layer", "neuron", "operator", "heuristic"]
    assert grown.truth.select(keys).equals(grown.truth.select(keys).unique().sort(keys))


def test_the_same_seed_gives_the_same_bytes(grown: Grown, tmp_path: Path):
    again, other = grow(tmp_path / "again"), grow(tmp_path / "other", seed=1)
    assert digests(again.folder) == digests(grown.folder)
    assert (
        digests(other.folder)["models/planted/model.safetensors"]
        != digests(grown.folder)["models/planted/model.safetensors"]
    )


def test_more_neurons_than_heuristics_are_refused(tmp_path: Path):
    with pytest.raises(PlantingError, match=r"planted\.neurons"):
        grow(tmp_path / "p", neurons={"exact": 5000})


def test_shares_that_leave_nothing_are_refused():
    with pytest.raises(ParamsError, match=r"smallest_share is 0\.7"):
        check(Planted, {**PLANTED, "smallest_share": 0.7}, "planted")
