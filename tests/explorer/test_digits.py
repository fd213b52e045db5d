"""Explore a model that predicts one token of the answer: the number of this token is its answer."""

from pathlib import Path

import numpy as np
import pytest

from stages.explorer.explorer import Explorer
from stages.explorer.views import neuron, prompt
from tests.explorer.made import HEURISTICS, NEURONS, SUBJECT, TENS, explorer, made
from tests.explorer.said import field, says

KEYS = {"subject": SUBJECT, "operator": "add", "layer": 0, "neuron": 3}
ON_ANSWERS, SCORED = "contribution to the answer", "as the outlined heuristic is scored"


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These tests need no micro project."""


@pytest.fixture
def digits(tmp_path: Path) -> Explorer:
    return explorer(made(tmp_path))


def test_a_prompt_is_explained_by_the_number_to_predict(digits: Explorer):
    project = digits.project
    cell = prompt.load_cell(project, SUBJECT, "add", 9, 12)
    assert (cell.result, cell.target) == (21, 2)
    prediction = digits.models.ready(SUBJECT).predict("add", 9, 12)
    rival, margin = prompt.strongest_rival(project, SUBJECT, prediction.logits, cell.target)
    standing = prompt.neuron_heuristics(project, cell, "fdr")
    holds = dict(standing.select("heuristic", "holds").rows())
    assert holds == dict(zip(HEURISTICS, [False, False, True], strict=True))
    rows = prompt.contributions(project, cell, rival, prediction, standing).sort("neuron")
    pivot = f"pivot (from value_logits) on number in (2, {rival}) using any_value(logit)"
    known = project.ask(f"{pivot} order by neuron")
    difference = known["2"] - known[f"{rival}"]
    np.testing.assert_allclose(rows["logit_difference"], difference, rtol=1e-6)
    assert prompt.summed(rows, margin)["contribution"].sum() == pytest.approx(margin)
    shown = says(digits, "prompt", subject=SUBJECT, prompt="9+12")
    assert "9 + 12 = 21, predicted token: 2: digits is right" in shown
    assert "What heuristics add to the answer" in shown


def test_contributions_and_members_are_about_the_number_to_predict(digits: Explorer):
    project = digits.project
    values, results = project.map(*KEYS.values())
    contributions = neuron.contributions(project, KEYS, values, results)
    known = project.ask(neuron.CONTRIBUTIONS, **KEYS)
    at = known["op1"].to_numpy(), known["op2"].to_numpy()
    np.testing.assert_allclose(contributions[at], known["contribution"], rtol=1e-5)
    op1, op2 = np.indices(results.shape)
    tens = np.array(TENS)[op1 + op2]
    assert np.array_equal(np.isfinite(contributions), tens >= 0)
    assert known.height == np.sum(tens >= 0)
    holds = neuron.members(project, SUBJECT, "add", "asked = 1", results.shape)
    assert np.array_equal(holds, tens == 1)


@pytest.mark.parametrize("shown", ["activation", ON_ANSWERS, SCORED])
@pytest.mark.parametrize(
    ("number", "scored"),
    [(0, ON_ANSWERS), (1, ON_ANSWERS), (2, "activation")],
)
def test_an_outline_is_on_the_map_on_which_its_heuristic_is_scored(
    digits: Explorer,
    number: int,
    scored: str,
    shown: str,
):
    name = HEURISTICS[number]
    content = says(digits, "neuron", **KEYS | {"neuron": number}, outline=name, map=shown)
    own = shown in (scored, SCORED)
    assert (f"Outlined: {name}" in content) == own
    assert ('"contour"' in content) == own
    assert (f"{name} is scored on the map of {scored}" in content) != own


def test_heuristics_and_neurons_to_ablate_are_offered(digits: Explorer):
    question = {"subject": SUBJECT, "prompt": "9+12"}
    options = field(digits, "silence", "heuristics", **question).options
    names = [option["value"] for option in options]
    assert names == [HEURISTICS[2], *HEURISTICS[:2]]  # first those that hold here
    assert len(field(digits, "silence", "ticked", **question).options) == NEURONS
