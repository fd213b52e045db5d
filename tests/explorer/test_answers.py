"""Verify what views show against SQL, NumPy and forward passes of transformers."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.explorer.explorer import Explorer
from stages.explorer.jobs import BROKEN, MENDED, SAME, Ablation, GridJob
from stages.explorer.project import ExplorerError, Project
from stages.explorer.views import compare, find, neuron, prompt, silence
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.subject import Subject

SUBJECT, OTHER = "abacus", "abacus-step-00100"
KEYS = {"subject": SUBJECT, "operator": "add", "layer": 1, "neuron": 7}
PROMPTS = [("add", 3, 9), ("subtract", 17, 4), ("multiply", 6, 7)]
TOKENS = """
    select tokens, answer_token from prompts
    where subject = 'abacus' and operator = $operator and op1 = $op1 and op2 = $op2
"""


@pytest.fixture(scope="module")
def plain() -> AutoModelForCausalLM:
    """Return the model as transformers loads it."""
    source = Subject.named(SUBJECT).settings.source
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64).eval()


def tokens(project: Project, operator: str, op1: int, op2: int) -> tuple[torch.Tensor, int]:
    [(listed, answer)] = project.ask(TOKENS, operator=operator, op1=op1, op2=op2).rows()
    return torch.tensor([listed]), answer


def zeroed(neuron: int):
    """Return a hook that sets a neuron to zero at the last position."""

    def hook(_, inputs):
        changed = inputs[0].clone()
        changed[:, -1, neuron] = 0
        return (changed,)

    return hook


def forward(
    plain: AutoModelForCausalLM,
    prompt_tokens: torch.Tensor,
    neurons: list[tuple[int, int]] = (),
) -> np.ndarray:
    """Return logits with neurons set to zero at the last position.

    Hooks change the inputs of the projections that read the neurons.
    """
    handles = []
    for layer, number in neurons:
        projection = plain.model.layers[layer].mlp.down_proj
        handles.append(projection.register_forward_pre_hook(zeroed(number)))
    with torch.no_grad():
        logits = plain(prompt_tokens).logits[0, -1].numpy()
    for handle in handles:
        handle.remove()
    return logits


@pytest.mark.parametrize("key", PROMPTS)
def test_contributions_are_those_of_the_tables_and_add_up_to_the_margin(
    explorer: Explorer,
    plain: AutoModelForCausalLM,
    key: tuple,
):
    project, live = explorer.project, explorer.models.wait(SUBJECT)
    cell, prediction = prompt.load_cell(project, SUBJECT, *key), live.predict(*key)
    listed, answer = tokens(project, *key)
    np.testing.assert_allclose(prediction.logits, forward(plain, listed), atol=1e-4)
    rival, margin = prompt.strongest_rival(project, SUBJECT, prediction.logits, cell.result)
    heuristics = prompt.neuron_heuristics(project, cell, "threshold")
    rows = prompt.contributions(project, cell, rival, prediction, heuristics)
    first, _ = prompt.first_layer(project, SUBJECT)
    values = cell.keys() | {"first": first, "answer": cell.result, "rival": rival}
    known = project.ask(prompt.CONTRIBUTIONS, **values).sort("layer", "neuron")
    shown = rows.sort("layer", "neuron")
    assert shown.select("layer", "neuron").equals(known.select("layer", "neuron"))
    expected = known["contribution"].to_numpy() * prediction.scale
    np.testing.assert_allclose(shown["contribution"], expected, atol=1e-2)  # the store has float16
    token = dict(project.ask(prompt.NUMBERS, subject=SUBJECT).rows())
    lead = prediction.logits[answer] - prediction.logits[token[rival]]
    parts = prompt.summed(rows, margin)
    assert parts["contribution"].sum() == pytest.approx(lead)
    assert parts["neurons"].sum() == rows.height
    del token[cell.result]
    assert prediction.logits[token[rival]] == prediction.logits[list(token.values())].max()


def test_contributions_are_what_an_mlp_writes_into_the_residual_stream(
    explorer: Explorer,
    plain: AutoModelForCausalLM,
):
    """All contributions of a layer are the output of its MLP, as the final norm scales it."""
    project, live, key = explorer.project, explorer.models.wait(SUBJECT), PROMPTS[0]
    prediction, (_, answer) = live.predict(*key), tokens(project, *key)
    last = plain.model.layers[-1].mlp.down_proj.weight.detach()
    unembedding = (plain.lm_head.weight * plain.model.norm.weight).detach()
    written = torch.from_numpy(prediction.neurons[-1]) @ last.T
    direction = unembedding[answer] - unembedding[answer + 1]
    direct = float(written @ direction * prediction.scale)
    cell = prompt.load_cell(project, SUBJECT, *key)
    rival = project.ask(prompt.NUMBERS, subject=SUBJECT).filter(token=answer + 1)["number"].item()
    rows = prompt.contributions(project, cell, rival, prediction, prompt.UNKNOWN)
    of_layer = rows.filter(layer=len(prediction.neurons) - 1)
    assert of_layer["contribution"].sum() == pytest.approx(direct, abs=1e-5)


def test_a_heuristic_holds_if_its_predicate_does(project: Project):
    query = "select heuristic, predicate from heuristics where operator = 'add'"
    catalogue = dict(project.ask(query).rows())
    seen = set()
    for op1, op2 in ((0, 0), (3, 9), (12, 5), (19, 19), (7, 14), (18, 1)):
        cell = prompt.load_cell(project, SUBJECT, "add", op1, op2)
        known = prompt.neuron_heuristics(project, cell, "threshold").unique("heuristic")
        values = f"select {op1} as op1, {op2} as op2, {op1 + op2} as result"
        for name, holds in known.select("heuristic", "holds").iter_rows():
            if name in catalogue:
                query = f"select ({catalogue[name]})::boolean from ({values})"
                assert holds == project.ask(query).item(), name
                seen.add(holds)
    assert seen == {True, False}


def test_a_map_its_profiles_and_contributions_are_those_of_the_tables(project: Project):
    values, results = project.map(*KEYS.values())
    rows = project.ask(neuron.MAP, **KEYS)
    assert np.array_equal(values.ravel(), rows["activation"].to_numpy())
    assert np.array_equal(results.ravel(), rows["result"].fill_null(-1).to_numpy())
    op1, op2 = np.indices(values.shape)
    for name, (coordinates, means) in neuron.profiles(values).items():
        along = eval(name, {}, {"op1": op1, "op2": op2})
        expected = [values[along == coordinate].mean() for coordinate in coordinates]
        np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-6)
    contributions = neuron.contributions(project, KEYS, values, results)
    known = project.ask(neuron.CONTRIBUTIONS, **KEYS)
    at = known["op1"].to_numpy(), known["op2"].to_numpy()
    np.testing.assert_allclose(contributions[at], known["contribution"], rtol=1e-5)
    assert np.isfinite(contributions).sum() == known.height


OP1, OP2 = np.indices((20, 20))
MEMBERS = {
    "result in 10..19": (OP1 + OP2) // 10 == 1,
    "op1 mod 5 = 2": OP1 % 5 == 2,
    "op1 = op2": OP1 == OP2,
}


@pytest.mark.parametrize("heuristic", MEMBERS)
def test_an_outline_is_around_the_cells_that_satisfy_the_heuristic(
    project: Project,
    heuristic: str,
):
    holds = neuron.members(project, SUBJECT, "add", heuristic, (20, 20))
    assert np.array_equal(holds, MEMBERS[heuristic])


def test_similar_neurons_have_the_largest_cosine_of_scores(project: Project):
    similar = project.ask(neuron.SIMILAR, **KEYS)
    scores = project.ask("from scores where subject = 'abacus' and operator = 'add'")
    scores = scores.filter(pl.col("chance_corrected") > 0).sort(
        "layer", "neuron", "heuristic", "side"
    )
    wide = scores.pivot(["heuristic", "side"], index=["layer", "neuron"], values="chance_corrected")
    matrix = wide.drop("layer", "neuron").fill_null(0).to_numpy().astype(np.float64)
    is_own = (wide["layer"] == KEYS["layer"]) & (wide["neuron"] == KEYS["neuron"])
    own = matrix[is_own.to_numpy()][0]
    cosine = matrix @ own / np.linalg.norm(matrix, axis=1) / np.linalg.norm(own)
    others = np.sort(cosine[~is_own.to_numpy()])[::-1]
    np.testing.assert_allclose(similar["similarity"], others[others > 0][:12], rtol=1e-6)


@pytest.mark.parametrize("key", PROMPTS)
def test_an_ablation_gives_the_logits_of_a_model_with_hooks(
    explorer: Explorer,
    plain: AutoModelForCausalLM,
    key: tuple,
):
    live, neurons = explorer.models.wait(SUBJECT), [(0, 3), (1, 7), (1, 40)]
    ablation = Ablation(SUBJECT, key[0], tuple(neurons), "zero")
    logits = silence.ablated(live, live.cell(*key), ablation)
    listed, answer = tokens(explorer.project, *key)
    draws = [live.random(neurons, seed) for seed in range(silence.DRAWS)]
    for shown, removed in zip(logits, [[], neurons, *draws], strict=True):
        np.testing.assert_allclose(shown, forward(plain, listed, removed), atol=1e-4)
    numbers = explorer.project.ask(prompt.NUMBERS, subject=SUBJECT)
    summary = silence.summary(logits, answer, numbers)
    stacked = np.stack(logits)
    exact = torch.from_numpy(stacked).softmax(1)[:, answer]
    np.testing.assert_allclose(summary["probability"], exact, atol=1e-12)
    assert np.array_equal(summary["correct"], stacked.argmax(1) == answer)


def test_random_neurons_are_as_many_others_of_each_layer(explorer: Explorer):
    live, neurons = explorer.models.wait(SUBJECT), [(0, 1), (1, 2), (1, 3)]
    draws = {tuple(live.random(neurons, seed)) for seed in range(4)}
    assert len(draws) > 1
    for drawn in draws:
        assert np.array(drawn)[:, 0].tolist() == [0, 1, 1]
        assert len(set(drawn)) == 3
        assert not set(drawn) & set(neurons)


def test_values_of_another_prompt_replace_those_of_neurons(explorer: Explorer):
    """All neurons of the last layer: its output changes, unless the prompt is the same."""
    live = explorer.models.wait(SUBJECT)
    neurons = [(1, number) for number in range(64)]
    row = live.cell("add", 3, 9)
    [same] = live.ablated(row, [neurons], "counterfactual", row)
    [other] = live.ablated(row, [neurons], "counterfactual", live.cell("add", 18, 1))
    np.testing.assert_allclose(same, live.predict("add", 3, 9).logits, atol=1e-4)
    assert np.abs(other - same).max() > 1e-3


def test_a_grid_is_every_cell_ablated_alone(explorer: Explorer):
    live = explorer.models.wait(SUBJECT)
    neurons = tuple((1, number) for number in range(0, 64, 2))
    job = GridJob(Ablation(SUBJECT, "add", neurons, "mean"))
    job.start(live, explorer.models.lock, 20)
    job.thread.join(timeout=60)
    assert job.done
    assert job.error is None
    prompts = "from prompts where subject = 'abacus' and operator = 'add' and result is not null"
    cells = explorer.project.ask(f"select op1, op2 {prompts}").rows()
    assert job.cells == (len(cells), len(cells))
    assert np.isfinite(job.changes).sum() == len(cells)
    seen = []
    for op1, op2 in cells[::7]:
        row = live.cell("add", op1, op2)
        [after] = live.ablated(row, [neurons], "mean", None)
        before = live.predict("add", op1, op2).logits
        right = np.array([before.argmax(), after.argmax()]) == row["answer_token"].item()
        assert job.changes[op1, op2] == int(right[0]) - int(right[1])
        seen.append(job.changes[op1, op2])
    assert SAME in seen
    assert {*seen} <= {BROKEN, MENDED, SAME}


def test_neurons_satisfy_every_condition(project: Project):
    keys = {"subject": SUBJECT, "operator": "add"}
    everything = project.ask(find.neurons_query(project, SUBJECT, []), **keys)
    variances = pl.read_parquet("data/abacus/store/neuron_variances.parquet")
    assert everything.height == variances.filter(operator="add").height
    assert everything["rank"].is_sorted()
    variance = float(everything["variance"].median())
    values = {"layer": 1, "heuristic": "mod", "effect": 1e-6, "variance": variance}
    selected = project.ask(find.neurons_query(project, SUBJECT, values), **keys, **values)
    has_modulo = pl.element().str.contains("mod", literal=True)
    expected = everything.filter(
        pl.col("labels").list.eval(has_modulo).list.any(),
        pl.col("logit_effect").abs() >= 1e-6,
        pl.col("variance") >= variance,
        layer=1,
    )
    assert selected.rows() == expected.rows()


def test_rows_are_written_as_csv_and_parquet(project: Project):
    query = (
        "select layer, neuron, [neuron, layer] as both from neuron_variances "
        "where subject = 'abacus' order by all limit 5"
    )
    rows = project.ask(query)
    assert pl.read_parquet(io.BytesIO(find.file(project, query, "parquet"))).equals(rows)
    text = pl.read_csv(io.BytesIO(find.file(project, query, "csv")))
    assert text.select("layer", "neuron").rows() == rows.select("layer", "neuron").rows()
    assert text["both"][0] == str(rows["both"][0].to_list())


@pytest.mark.parametrize(("side", "subject"), [("left", SUBJECT), ("right", OTHER)])
def test_a_comparison_has_the_accuracy_and_the_counts_of_each_model(
    project: Project,
    side: str,
    subject: str,
):
    shown = compare.accuracy(project, SUBJECT, OTHER)
    predictions = pl.read_parquet(f"data/{subject}/store/predictions.parquet")
    for operator in OPERATORS:
        correct = predictions.filter(operator=operator)["correct"].drop_nulls()
        accuracy = shown.filter(operator=operator)[f"{side}_accuracy"].item()
        assert accuracy == pytest.approx(correct.mean())
    keys = {"left": SUBJECT, "right": OTHER, "operator": "add"}
    counts = compare.heuristics(project, keys, "heuristic", 1000)
    settings = pl.read_parquet("data/heuristics/label_setting.parquet")
    scores = pl.read_parquet(f"data/{subject}/heuristics/scores.parquet")
    other = pl.read_parquet(f"data/{OTHER}/heuristics/scores.parquet")
    mine = pl.read_parquet(f"data/{SUBJECT}/heuristics/scores.parquet")
    passing = scores.filter(
        pl.col("chance_corrected") >= settings["threshold"].max(),
        pl.col("layer").is_in(set(mine["layer"]) & set(other["layer"])),
        operator="add",
    )
    neurons = pl.struct("layer", "neuron").n_unique().alias(f"{side}_neurons")
    expected = passing.group_by("heuristic").agg(neurons)
    shown = counts.select("heuristic", f"{side}_neurons").filter(pl.col(f"{side}_neurons") > 0)
    assert sorted(shown.rows()) == sorted(expected.rows())


def test_a_query_that_takes_too_long_is_stopped_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("stages.explorer.project.PATIENCE", 0.2)
    endless = (
        "select count(*) from range(10000000) as a, range(10000000) as b where a.range % 7 = 1"
    )
    stopped = r"^The query was stopped after 0 seconds\. Ask for fewer neurons or rows"
    with pytest.raises(ExplorerError, match=stopped):
        Project(tmp_path).ask(endless)


def test_a_missing_table_is_a_message_that_names_the_stage(tmp_path: Path, micro: Path):
    for name in ("corpus/cells", f"{SUBJECT}/store/predictions"):
        file = tmp_path / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        file.symlink_to((micro / f"data/{name}.parquet").absolute())
    few = Project(tmp_path)
    assert few.subjects == [SUBJECT]
    cell = prompt.load_cell(few, SUBJECT, "add", 3, 9)
    with pytest.raises(ExplorerError, match=r"stages/heuristics/dvc.yaml:labels@abacus"):
        prompt.neuron_heuristics(few, cell, "label")
    with pytest.raises(ExplorerError, match=r"stages/store/dvc.yaml:dump@abacus"):
        few.map(SUBJECT, "add", 0, 0)
    with pytest.raises(ExplorerError, match=r"stages/heuristics/dvc.yaml:scores@abacus"):
        neuron.matches(few, KEYS)
    with pytest.raises(ExplorerError, match=r"stages/heuristics/dvc.yaml:labels@"):
        few.ask("select * from labels")
    with pytest.raises(ExplorerError, match="no model has predictions in"):
        Project(tmp_path / "corpus").subjects  # noqa: B018
