"""A subject that is asked for one token of the answer: votes, heuristics and maps are about the number that it stands for."""

from pathlib import Path

import numpy as np
import pytest

from stages.explorer.explorer import Explorer
from stages.explorer.views import neuron, prompt
from tests.explorer.made import HEURISTICS, NEURONS, SIDE, SUBJECT, TENS, explorer, made
from tests.explorer.said import field, says

KEYS = {"subject": SUBJECT, "operator": "add", "layer": 0, "neuron": 3}


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These need no micro project."""


@pytest.fixture
def digits(tmp_path: Path) -> Explorer:
    return explorer(made(tmp_path))


def test_a_prompt_is_explained_by_the_number_asked_for(digits: Explorer):
    project = digits.project
    of = prompt.load_cell(project, SUBJECT, "add", 9, 12)
    assert (of.result, of.target) == (21, 2)
    spoken = digits.models.ready(SUBJECT).predict("add", 9, 12)
    rival, margin = prompt.strongest_rival(project, SUBJECT, spoken.logits, of.target)
    standing = prompt.neuron_heuristics(project, of, "called")
    assert dict(standing.select("heuristic", "holds").rows()) == dict(zip(HEURISTICS, [False, False, True], strict=True))
    voted = prompt.contributions(project, of, rival, spoken, standing).sort("neuron")
    known = project.ask(f"pivot (from value_logits) on number in (2, {rival}) using any_value(logit) order by neuron")
    np.testing.assert_allclose(voted["logit_difference"], known["2"] - known[f"{rival}"], rtol=1e-6)
    assert prompt.summed(voted, margin)["contribution"].sum() == pytest.approx(margin)
    said = says(digits, "prompt", subject=SUBJECT, prompt="9+12")
    assert "9 + 12 = 21, predicted token: 2: digits is right" in said
    assert "What heuristics add to the answer" in said


def test_maps_and_outlines_are_of_the_number_asked_for(digits: Explorer):
    project = digits.project
    values, results = project.map(*KEYS.values())
    voted, known = neuron.contributions(project, KEYS, values, results), project.ask(neuron.CONTRIBUTIONS, **KEYS)
    np.testing.assert_allclose(voted[known["op1"].to_numpy(), known["op2"].to_numpy()], known["contribution"], rtol=1e-5)
    assert np.isfinite(voted).sum() == known.height == sum(TENS[a + b] >= 0 for a in range(SIDE) for b in range(SIDE))
    op1, op2 = np.indices(results.shape)
    holds = neuron.members(project, SUBJECT, "add", "asked = 1", results.shape)
    assert np.array_equal(holds, (op1 + op2) // 10 == 1)
    scored = dict(zip(HEURISTICS, ["contribution to the answer", "contribution to the answer", "activation"], strict=True))
    for name, right in scored.items():
        for shown in ("activation", "contribution to the answer", "as the outlined heuristic is scored"):
            said = says(digits, "neuron", **KEYS | {"neuron": HEURISTICS.index(name)}, outline=name, map=shown)
            own = shown in (right, "as the outlined heuristic is scored")
            assert (f"Outlined: {name}" in said) == own == ('"contour"' in said), (name, shown)
            assert (f"{name} is scored on the map of {right}" in said) != own


def test_heuristics_and_neurons_to_silence_are_offered(digits: Explorer):
    asked = {"subject": SUBJECT, "prompt": "9+12"}
    offered = [option["value"] for option in field(digits, "silence", "heuristics", **asked).options]
    assert offered == [HEURISTICS[2], *HEURISTICS[:2]]  # what holds here stands first
    assert len(field(digits, "silence", "ticked", **asked).options) == NEURONS
