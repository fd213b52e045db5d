"""What each view says, held against SQL, against numpy and against plain forward passes of transformers."""

import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.explorer import jobs
from stages.explorer.explorer import Explorer
from stages.explorer.project import ExplorerError, Project
from stages.explorer.views import compare, find, neuron, prompt, silence
from stages.lib.core.words import OPERATORS
from stages.lib.subject import Subject

SUBJECT, OTHER = "abacus", "abacus-step-00100"
KEYS = {"subject": SUBJECT, "operator": "add", "layer": 1, "neuron": 7}
PROMPTS = [("add", 3, 9), ("subtract", 17, 4), ("multiply", 6, 7)]


@pytest.fixture(scope="module")
def plain() -> AutoModelForCausalLM:
    """The subject's model as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(Subject.named(SUBJECT).settings.source, dtype=torch.float64).eval()


def tokens(project: Project, operator: str, op1: int, op2: int) -> tuple[torch.Tensor, int]:
    query = "select tokens, answer_token from prompts where subject = $s and operator = $o and op1 = $a and op2 = $b"
    [(listed, answer)] = project.ask(query, s=SUBJECT, o=operator, a=op1, b=op2).rows()
    return torch.tensor([listed]), answer


def told(plain: AutoModelForCausalLM, prompt_tokens: torch.Tensor, silent: list[tuple[int, int]] = ()) -> np.ndarray:
    """Logits with neurons set to zero at the last position, by hooks on the projections that read them."""
    handles = []
    for layer, one in silent:

        def hook(_, inputs, one=one):
            changed = inputs[0].clone()
            changed[:, -1, one] = 0
            return (changed,)

        handles.append(plain.model.layers[layer].mlp.down_proj.register_forward_pre_hook(hook))
    with torch.no_grad():
        logits = plain(prompt_tokens).logits[0, -1].numpy()
    for handle in handles:
        handle.remove()
    return logits


@pytest.mark.parametrize("of", PROMPTS)
def test_votes_are_those_of_the_tables_and_add_up_to_the_margin(explorer: Explorer, plain, of: tuple):
    project, live = explorer.project, explorer.models.wait(SUBJECT)
    cell = prompt.load_cell(project, SUBJECT, *of)
    spoken = live.predict(*of)
    listed, answer = tokens(project, *of)
    np.testing.assert_allclose(spoken.logits, told(plain, listed), atol=1e-4)
    rival, margin = prompt.strongest_rival(project, SUBJECT, spoken.logits, cell.result)
    standing = prompt.neuron_heuristics(project, cell, "scored")
    voted = prompt.contributions(project, cell, rival, spoken, standing)
    given = cell.keys() | {"first": prompt.first_late(project, SUBJECT), "answer": cell.result, "rival": rival}
    known = project.ask(prompt.CONTRIBUTIONS, **given).sort("layer", "neuron")
    mine = voted.sort("layer", "neuron")
    assert mine.select("layer", "neuron").rows() == known.select("layer", "neuron").rows()
    np.testing.assert_allclose(mine["contribution"], known["contribution"].to_numpy() * spoken.scale, atol=1e-2)  # the store has float16
    token = dict(project.ask(prompt.NUMBERS, subject=SUBJECT).rows())
    parts = prompt.summed(voted, margin)
    assert parts["contribution"].sum() == pytest.approx(spoken.logits[answer] - spoken.logits[token[rival]])
    assert parts["neurons"].sum() == voted.height
    others = [spoken.logits[of] for number, of in token.items() if number != cell.result]
    assert spoken.logits[token[rival]] == max(others)


def test_the_rest_is_what_everything_else_writes_into_the_stream(explorer: Explorer, plain):
    """All votes of a layer are what its MLP writes, seen through the final norm: silencing nothing else moves the margin so."""
    live, of = explorer.models.wait(SUBJECT), PROMPTS[0]
    spoken, (_, answer) = live.predict(*of), tokens(explorer.project, *of)
    last, unembedding = plain.model.layers[-1].mlp.down_proj.weight, plain.lm_head.weight * plain.model.norm.weight
    rival = answer + 1
    written = torch.from_numpy(spoken.neurons[-1]) @ last.T
    direct = float(written.detach() @ (unembedding[answer] - unembedding[rival]).detach() * spoken.scale)
    cell = prompt.load_cell(explorer.project, SUBJECT, *of)
    none = pl.DataFrame(
        schema={"layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String, "corrected": pl.Float32, "holds": pl.Boolean}
    )
    number = {token: number for number, token in explorer.project.ask(prompt.NUMBERS, subject=SUBJECT).rows()}[rival]
    voted = prompt.contributions(explorer.project, cell, number, spoken, none)
    assert voted.filter(layer=len(spoken.neurons) - 1)["contribution"].sum() == pytest.approx(direct, abs=1e-5)


def test_a_heuristic_holds_where_its_predicate_does(project: Project):
    catalogue = dict(project.ask("select heuristic, predicate from heuristics where operator = 'add'").rows())
    seen = set()
    for op1, op2 in ((0, 0), (3, 9), (12, 5), (19, 19), (7, 14), (18, 1)):
        found = prompt.neuron_heuristics(project, prompt.load_cell(project, SUBJECT, "add", op1, op2), "scored").unique("heuristic")
        for name, holds in found.select("heuristic", "holds").iter_rows():
            if name in catalogue:
                here = f"select {op1} as op1, {op2} as op2, {op1 + op2} as result"
                assert holds == project.ask(f"select ({catalogue[name]})::boolean from ({here})").item(), name
                seen.add(holds)
    assert seen == {True, False}


def test_a_map_its_profiles_and_votes_are_those_of_the_tables(project: Project):
    values, results = project.map(*KEYS.values())
    rows = project.ask(neuron.MAP, **KEYS)
    assert np.array_equal(values.ravel(), rows["activation"].to_numpy())
    assert np.array_equal(results.ravel(), rows["result"].fill_null(-1).to_numpy())
    op1, op2 = np.indices(values.shape)
    for name, (places, means) in neuron.profiles(values).items():
        along = eval(name, {}, {"op1": op1, "op2": op2})
        np.testing.assert_allclose(means, [values[along == place].mean() for place in places], rtol=1e-5, atol=1e-6)
    voted = neuron.contributions(project, KEYS, values, results)
    known = project.ask(neuron.CONTRIBUTIONS, **KEYS)
    np.testing.assert_allclose(voted[known["op1"].to_numpy(), known["op2"].to_numpy()], known["contribution"], rtol=1e-5)
    assert np.isfinite(voted).sum() == known.height


@pytest.mark.parametrize("heuristic", ["result in 10..19", "op1 mod 5 = 2", "op1 = op2"])
def test_an_outline_is_around_the_cells_that_satisfy_the_heuristic(project: Project, heuristic: str):
    holds = neuron.members(project, SUBJECT, "add", heuristic, (20, 20))
    op1, op2 = np.indices((20, 20))
    expected = {"result in 10..19": (op1 + op2) // 10 == 1, "op1 mod 5 = 2": op1 % 5 == 2, "op1 = op2": op1 == op2}[heuristic]
    assert np.array_equal(holds, expected)


def test_similar_neurons_have_the_largest_cosine_of_scores(project: Project):
    found = project.ask(neuron.SIMILAR, **KEYS)
    scores = project.ask("select layer, neuron, heuristic, side, corrected from scores where subject = 'abacus' and operator = 'add'")
    wide = scores.filter(pl.col("corrected") > 0).pivot(["heuristic", "side"], index=["layer", "neuron"], values="corrected").fill_null(0)
    matrix = wide.drop("layer", "neuron").to_numpy().astype(np.float64)
    places = wide.select("layer", "neuron").rows()
    own = matrix[places.index((KEYS["layer"], KEYS["neuron"]))]
    cosine = matrix @ own / np.linalg.norm(matrix, axis=1) / np.linalg.norm(own)
    best = sorted((value for place, value in zip(places, cosine, strict=True) if place != (1, 7) and value > 0), reverse=True)[:12]
    np.testing.assert_allclose(found["similarity"], best, rtol=1e-6)


@pytest.mark.parametrize("of", PROMPTS)
def test_silenced_neurons_say_what_hooks_on_the_model_say(explorer: Explorer, plain, of: tuple):
    live = explorer.models.wait(SUBJECT)
    chosen = [(0, 3), (1, 7), (1, 40)]
    row = live.cell(*of)
    logits = silence.ablated(live, row, jobs.Ablation(SUBJECT, of[0], tuple(chosen), "zero"))
    listed, answer = tokens(explorer.project, *of)
    np.testing.assert_allclose(logits[0], told(plain, listed), atol=1e-4)
    np.testing.assert_allclose(logits[1], told(plain, listed, chosen), atol=1e-4)
    assert len(logits) == 2 + silence.DRAWS
    for seed, drawn in enumerate(logits[2:]):
        np.testing.assert_allclose(drawn, told(plain, listed, live.random(chosen, seed)), atol=1e-4)
    summary = silence.summary(logits, answer, explorer.project.ask(prompt.NUMBERS, subject=SUBJECT))
    exact = torch.from_numpy(np.stack(logits)).softmax(1)[:, answer]
    np.testing.assert_allclose(summary["probability"], exact, atol=1e-12)
    assert summary["correct"].to_list() == [int(one.argmax()) == answer for one in logits]


def test_random_neurons_are_as_many_others_of_each_layer(explorer: Explorer):
    chosen = [(0, 1), (1, 2), (1, 3)]
    drawn = {seed: explorer.models.wait(SUBJECT).random(chosen, seed) for seed in range(4)}
    for one in drawn.values():
        assert [layer for layer, _ in one] == [0, 1, 1]
        assert len(set(one)) == 3
        assert not set(one) & set(chosen)
    assert len({tuple(one) for one in drawn.values()}) > 1


def test_another_prompts_values_are_put_in(explorer: Explorer):
    """All neurons of the last layer from another prompt: what changes is what its MLP writes, and nothing for the same prompt."""
    live = explorer.models.wait(SUBJECT)
    everything = [(1, one) for one in range(64)]
    row = live.cell("add", 3, 9)
    [same] = live.ablated(row, [everything], "counterfactual", row)
    [other] = live.ablated(row, [everything], "counterfactual", live.cell("add", 18, 1))
    np.testing.assert_allclose(same, live.predict("add", 3, 9).logits, atol=1e-4)
    assert np.abs(other - same).max() > 1e-3


def test_a_grid_is_every_cell_silenced_alone(explorer: Explorer):
    live, of = explorer.models.wait(SUBJECT), jobs.Ablation(SUBJECT, "add", tuple((1, one) for one in range(0, 64, 2)), "mean")
    job = jobs.GridJob(of)
    job.start(live, explorer.models.lock, 20)
    job.thread.join(timeout=60)
    assert job.done
    assert job.error is None
    right = dict.fromkeys([jobs.BROKEN, jobs.MENDED, jobs.SAME], 0)
    cells = explorer.project.ask("select op1, op2 from prompts where subject = 'abacus' and operator = 'add' and result is not null").rows()
    assert job.cells == (len(cells), len(cells))
    assert np.isfinite(job.changes).sum() == len(cells)
    for op1, op2 in cells[::7]:
        row = live.cell("add", op1, op2)
        before, after = live.predict("add", op1, op2).logits, live.ablated(row, [of.neurons], "mean", None)[0]
        answer = row["answer_token"].item()
        assert job.changes[op1, op2] == (before.argmax() == answer) * 1 - (after.argmax() == answer)
        right[int(job.changes[op1, op2])] += 1
    assert right[jobs.SAME]


def test_neurons_are_found_by_every_condition(project: Project):
    given = {"subject": SUBJECT, "operator": "add"}
    everything = project.ask(find.neurons_query(project, SUBJECT, []), **given)
    variances = pl.read_parquet("data/abacus/store/neuron_variances.parquet").filter(operator="add")
    assert everything.height == variances.height
    assert everything["rank"].is_sorted()
    some = {"layer": 1, "heuristic": "mod", "effect": 1e-6, "variance": float(everything["variance"].median())}
    found = project.ask(find.neurons_query(project, SUBJECT, list(find.CONDITIONS)), **given, **some)
    expected = everything.filter(
        (pl.col("layer") == 1)
        & pl.col("labels").list.eval(pl.element().str.contains("mod", literal=True)).list.any()
        & (pl.col("logit_effect").abs() >= 1e-6)
        & (pl.col("variance") >= some["variance"])
    )
    assert found.rows() == expected.rows()


def test_rows_are_written_as_csv_and_parquet(project: Project):
    query = "select layer, neuron, [neuron, layer] as both from neuron_variances where subject = 'abacus' order by all limit 5"
    rows = project.ask(query)
    assert pl.read_parquet(io.BytesIO(find.file(project, query, "parquet"))).equals(rows)
    text = pl.read_csv(io.BytesIO(find.file(project, query, "csv")))
    assert text.select("layer", "neuron").rows() == rows.select("layer", "neuron").rows()
    assert text["both"][0] == str(rows["both"][0].to_list())


def test_two_subjects_are_compared_by_what_each_is_alone(project: Project):
    found = compare.accuracy(project, SUBJECT, OTHER)
    for side, subject in (("left", SUBJECT), ("right", OTHER)):
        alone = pl.read_parquet(f"data/{subject}/store/predictions.parquet")
        for operator in OPERATORS:
            asked = alone.filter(pl.col("operator") == operator)["correct"].drop_nulls()
            assert found.filter(operator=operator)[f"{side}_accuracy"].item() == pytest.approx(asked.mean())
    given = {"left": SUBJECT, "right": OTHER, "operator": "add"}
    counted = compare.heuristics(project, given, "heuristic", 1000)
    threshold = pl.read_parquet("data/heuristics/label_setting.parquet")["threshold"].max()
    layers = set.intersection(*({*pl.read_parquet(f"data/{one}/heuristics/scores.parquet")["layer"]} for one in (SUBJECT, OTHER)))
    for side, subject in (("left", SUBJECT), ("right", OTHER)):
        scores = pl.read_parquet(f"data/{subject}/heuristics/scores.parquet").filter(
            (pl.col("operator") == "add") & (pl.col("corrected") >= threshold) & pl.col("layer").is_in(layers)
        )
        expected = dict(scores.group_by("heuristic").agg(pl.struct("layer", "neuron").n_unique()).rows())
        assert {name: n for name, n in counted.select("heuristic", f"{side}_neurons").iter_rows() if n} == expected


def test_what_is_missing_is_a_sentence_that_names_the_stage(tmp_path: Path, micro: Path):
    for file in ("corpus/cells", f"{SUBJECT}/store/predictions"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / f"{file}.parquet").symlink_to((micro / f"data/{file}.parquet").absolute())
    few = Project(tmp_path)
    assert few.subjects == [SUBJECT]
    cell = prompt.load_cell(few, SUBJECT, "add", 3, 9)
    for ask, stage in (
        (lambda: prompt.neuron_heuristics(few, cell, "label"), "stages/heuristics/dvc.yaml:labels@abacus"),
        (lambda: few.map(SUBJECT, "add", 0, 0), "stages/store/tensors/dvc.yaml:dump@abacus"),
        (lambda: neuron.matches(few, KEYS), "stages/heuristics/tensors/dvc.yaml:scores@abacus"),
        (lambda: few.ask("select * from labels"), "stages/heuristics/dvc.yaml:labels@"),
    ):
        with pytest.raises(ExplorerError, match=stage):
            ask()
    with pytest.raises(ExplorerError, match="no model has predictions in"):
        Project(tmp_path / "corpus").subjects  # noqa: B018
