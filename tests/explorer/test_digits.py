"""Explore a model that predicts one token of the answer: the number of this token is its answer."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.explorer import charts
from stages.explorer.app import tried
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS
from stages.explorer.question import Question
from stages.explorer.views import neuron, prompt
from tests.explorer.made import HEURISTICS, NEURONS, SUBJECT, TENS, explorer, made, put
from tests.explorer.said import field, says, words

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


def outlines(digits: Explorer, number: int) -> dict[str, str]:
    """Return the outlines that the view of a neuron offers: value -> label."""
    options = field(digits, "neuron", "outline", **KEYS | {"neuron": number}).options
    shown = {}
    for option in options:
        named = option if isinstance(option, dict) else {"value": option, "label": option}
        shown[named["value"]] = named["label"]
    return shown


def test_a_discovered_predicate_can_be_outlined(digits: Explorer):
    """Of neurons 3 and 4, only 3 has a predicate that is discovered; 5 has none at all."""
    predicate = "op1 % 4 = 3 and op2 <= 5"
    neurons = {"neuron": [3, 4], "discovered": [True, False], "q_value": [0.01, None]}
    described = {"predicate": [predicate, "op1 = 1"], "side": "top", "same_as": "op1 in 0..9"}
    bits = dict.fromkeys(("bits", "gain", "decoy_gain", "explained", "catalogue_explained"), 0.5)
    keys = {"subject": SUBJECT, "operator": "add", "layer": 0, "catalogue": "op1 in 0..9"}
    rows = pl.DataFrame(keys | neurons | described | bits)
    put(digits.project.data, f"{SUBJECT}/heuristics/discovered", rows)
    new = explorer(digits.project.data)
    name = neuron.PREDICATE
    assert outlines(new, 3)[name] == f"{predicate} (discovered)"
    assert name not in outlines(new, 4)
    assert name not in outlines(new, 5)
    values, results = new.project.map(*KEYS.values())
    op1, op2 = np.indices(results.shape)
    holds = (op1 % 4 == 3) & (op2 <= 5)
    drawn = charts.plain([], 1)
    charts.outline(drawn, holds)
    means = f"where the mean is {values[holds].mean():.3g}, elsewhere {values[~holds].mean():.3g}"
    shown = says(new, "neuron", **KEYS, outline=name)
    assert f"Outlined: {predicate}, {means}." in shown
    assert drawn["data"][0]["z"]["bdata"] in shown
    on_answers = says(new, "neuron", **KEYS, outline=name, map=ON_ANSWERS)
    assert f"{predicate} is scored on the map of activation" in on_answers
    for number in (4, 5):
        other = says(new, "neuron", **KEYS | {"neuron": number}, outline=name)
        assert '"contour"' not in other
        assert '"role": "alert"' not in other


def test_measured_changes_of_logits_are_beside_the_direct_ones(digits: Explorer):
    view, data = VIEWS["neuron"].later["evidence"], digits.project.data
    assert '"logit-shifts"' not in words(tried(view, digits, Question(KEYS)))
    changes = np.random.default_rng(4).normal(size=10).astype(np.float32)
    measured = KEYS | {"std": 2.0, "scale": 0.25, "prompts": 7, "changes": [changes.tolist()]}
    shifts = pl.DataFrame(measured, schema_overrides={"changes": pl.List(pl.Float32)})
    put(data, f"{SUBJECT}/neurons/logit_shifts", shifts)
    votes = KEYS | {"correlation": 0.625, "chance_correlation": -0.125}
    put(data, f"{SUBJECT}/neurons/causal_votes", pl.DataFrame(votes))
    new = explorer(data)
    rows = new.project.ask(neuron.SHIFTS, **KEYS)
    store = new.project.value_logits(SUBJECT)
    logits = store.read(0, slice(3, 4), slice(None))[0].astype(np.float64)
    assert rows["number"].to_list() == list(range(10))
    np.testing.assert_allclose(rows["direct"], (logits - logits.mean()) * 0.5, rtol=1e-5)
    assert rows["measured"].to_list() == changes.tolist()
    shown = words(tried(view, new, Question(KEYS)))
    for column in ("direct", "measured"):
        assert charts.packed(rows[column].to_numpy())["bdata"] in shown
    first = ", ".join(map(str, np.argsort(-changes)[:8]))
    assert f"mean over 7 prompts, largest for {first}. " in shown
    assert "with the direct one by 0.62, with the direct change of another neuron" in shown
    other = words(tried(view, new, Question(KEYS | {"neuron": 4})))
    assert "This neuron was not shifted" in other
    assert '"logit-shifts"' not in other


def test_heuristics_and_neurons_to_ablate_are_offered(digits: Explorer):
    question = {"subject": SUBJECT, "prompt": "9+12"}
    options = field(digits, "silence", "heuristics", **question).options
    names = [option["value"] for option in options]
    assert names == [HEURISTICS[2], *HEURISTICS[:2]]  # first those that hold here
    assert len(field(digits, "silence", "ticked", **question).options) == NEURONS
