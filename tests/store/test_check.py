"""`bag check` and `bag add`, on models of which the answer is known."""

import json
import os
import re
import shutil
from contextlib import chdir
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from transformers import LlamaConfig, MambaConfig

from stages.circuit import new
from stages.lib.console import pipeline
from stages.lib.core.settings import ParamsError, read
from stages.lib.core.settings import check as check_settings
from stages.lib.model import checkpoint
from stages.lib.model import tokenizer as tokenizers
from stages.lib.model.folder import ModelError
from stages.lib.subject import Sizes, SubjectSettings, load_sizes, load_subject
from stages.settings import Params
from stages.store import add, budget, check, check_options, description, kernels
from stages.store.answers import answers_on_grid
from stages.store.costs import DRAWS, LENGTHS, SCORED, CostRow, Costs, PromptLengths
from stages.store.declared_stages import REPEATED_OVER
from stages.store.kernels import KernelTimes
from stages.store.rates import Rates, layer_products
from tests import declared, families, vocabularies
from tests.conftest import bag_in, random_model, run_in
from tests.hub import COMMIT
from tests.lib.test_model import own_tokenizer
from tests.lib.test_outline import LARGE
from tests.micro import ROOT, copy_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's settings and stages, and a random Llama with one token for 0 to 999 each."""
    for file in [ROOT / "params.yaml", *ROOT.glob("stages/*/*.yaml")]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    monkeypatch.chdir(tmp_path)
    made(Path("models/mine"))
    return tmp_path


KERNELS = KernelTimes(
    cells=90_000,
    grid=90_000,
    scores=6e-3,
    draw=2.4e-4,
    spectrum=2e-3,
    search=6e-3,
    explained=1e-2,
    fits=3e-3,
)


class KnownTimes:
    """A measurement without a process, in place of one that takes four seconds."""

    def times(self) -> KernelTimes:
        return KERNELS


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "begin", lambda side, operator: KnownTimes())


def made(folder: Path) -> Path:
    """A random Llama in a folder, its tokenizer one of the numbers 0..999."""
    model = random_model("llama")
    model.resize_token_embeddings(1400, mean_resizing=False)
    model.save_pretrained(folder)
    tokenizers.build(999, ["+ - * / = x ÷"]).save_pretrained(folder)
    return folder


def output(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str]:
    """Exit status and output of `bag check`."""
    with pytest.raises(SystemExit) as ended:
        check.main([*arguments])
    return ended.value.code, capsys.readouterr().out


def test_a_model_that_fits_is_described(project: Path, capsys: pytest.CaptureFixture):
    status, text = output(capsys, "models/mine")
    assert status == 0
    for line in (
        "family        llama (LlamaForCausalLM)",
        "layers        3, each of 48 neurons and 4 heads, width 32",
        # 2 bytes x 48 neurons x 3 layers x 90,000 prompts x 4 operators
        "disk          99 MiB of activations",
        "loaded        yes; its parts agree with plain forward passes",
        "times         forward passes are measured on this model: a core takes ",
        "              neurons' maps are measured on a random map of 90,000 cells: ",
        "prompt        '1+1=', read as: <s> 1 + 1 =",
        "answers       0 to 999 are one token each",
        "operands      0 to 299 (cells.largest_operand) are one token each",
        "BOS           <s> before each prompt, as the tokenizer itself puts it there; --no-bos",
    ):
        assert line in text
    assert "But:" not in text


def test_a_tokenizer_that_splits_numbers_is_a_problem_that_is_said(
    project: Path, capsys: pytest.CaptureFixture
):
    own_tokenizer([]).save_pretrained("models/mine")
    status, text = output(capsys, "models/mine")
    assert status == 1
    assert "But: operand 100 is not one token in '100+1='" in text


def test_a_template_that_the_tokenizer_does_not_know_is_a_problem_that_is_said(
    project: Path, capsys: pytest.CaptureFixture
):
    status, text = output(capsys, "models/mine", "--template", "{op1} plus {symbol}{op2}=")
    assert status == 1
    assert "But: the subject's tokenizer does not know all of '1 plus +1='" in text


def test_numbers_of_several_tokens_are_asked_for_by_token(
    project: Path, capsys: pytest.CaptureFixture
):
    vocabularies.by_digit().save_pretrained("models/mine")
    status, text = output(capsys, "models/mine")
    assert status == 0
    line = "have several tokens; answer_token selects which one is predicted, here 0 of 0 to 2"
    assert f"numbers       {line}\n" in text
    assert "prompt        '299/299=', read as: 2 9 9 / 2 9 9 =\n" in text
    status, text = output(capsys, "models/mine", "--answer-token", "1", "--largest-operand", "34")
    assert status == 0
    assert "prompt        '34/34=', read as: 3 4 / 3 4 =\n" in text
    assert "answers       token 1 of each stands for a number from 0 to 9\n" in text
    assert "operands      0 to 34, of up to 4 tokens together" in text
    assert (
        "disk          1 MiB of activations" in text
    )  # 2 bytes x 48 neurons x 3 layers x 1,225 prompts x 4 operators
    add.main(["mine", "models/mine", "--answer-token", "1", "--largest-operand", "34"])
    settings = load_subject("mine")
    assert (settings.answer_token, settings.largest_operand) == (1, 34)
    assert check_settings(Params, read()).subjects["mine"] == settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--answer-token", "7"), "--answer-token = 7: "),
        (("--largest-operand", "3"), "--largest-operand = 3: "),
        (("--template", "{op1}="), "--template"),
    ],
)
def test_an_option_that_is_not_allowed_is_named_and_no_file_blamed(
    project: Path, options: tuple[str, ...], message: str
):
    vocabularies.KINDS["digits"]().save_pretrained("models/mine")
    with pytest.raises(ParamsError) as error:
        check.main(["models/mine", *options])
    assert str(error.value).startswith(message)
    assert "params.yaml" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "last"), [("digits", 2), ("qwen", 2), ("llama-2", 2), ("llama-3", 0), ("right", 0)]
)
def test_a_token_that_no_answer_has_is_a_problem_that_is_said(
    project: Path, kind: str, last: int, capsys: pytest.CaptureFixture
):
    vocabularies.KINDS[kind]().save_pretrained("models/mine")
    status, text = output(capsys, "models/mine", "--answer-token", "3", "--largest-operand", "34")
    assert status == 1
    assert (
        f"But: no answer has a token 3 that stands for 0; answers have tokens 0 to {last}\n" in text
    )


@pytest.mark.parametrize("name", LARGE)
def test_a_configuration_alone_is_enough(project: Path, name: str, capsys: pytest.CaptureFixture):
    config, (layers, neurons, heads, width) = LARGE[name]
    for file in Path("models/mine").glob("*.safetensors"):
        file.unlink()
    config.architectures = None
    config.save_pretrained("models/mine")
    status, text = output(capsys, "models/mine", "--dtype", "bfloat16")
    assert status == 0, text
    assert (
        f"layers        {layers}, each of {neurons:,} neurons and {heads} heads, width {width:,}"
        in text
    )
    assert "loaded        no, the folder has no weights" in text
    runs = int(
        re.search(r"^neurons/neuron_runs +([\d,]+) runs", text, re.MULTILINE)[1].replace(",", "")
    )
    largest = (
        r"neurons patched: the \d+ of largest attribution and \d+ random ones of [\d,]+ of a layer"
    )
    assert re.search(rf"^given up +{largest}; pairs of prompts: \d+ of 50", text, re.MULTILINE)
    assert re.search(
        r"^proposed +.*sampled_neurons: \d+, .*single_heads: false",
        text,
        re.MULTILINE,
    )
    add.main(["large", "models/mine", "--dtype", "bfloat16"])
    large, sizes = load_subject("large"), load_sizes("large")
    assert sizes.patched_neurons < neurons / 100
    assert runs == costs_of(large).neurons(sizes)
    settings = check_settings(Params, read())
    assert (settings.subjects["large"], settings.sizes["large"]) == (large, sizes)


def costs_of(settings: SubjectSettings, side: int = 300, speed: float = 1e10) -> Costs:
    """The costs of a model here. speed: multiplications of a core in a second."""
    a = checkpoint.outline(settings).architecture
    token, answer = len(a.layers) * layer_products(a) / speed, a.vocabulary * a.width / speed
    speeds = Rates(token, answer, 1, measured=False, kernels=KERNELS)
    return Costs(a, settings, side, 1 << 30, speeds)


@pytest.mark.parametrize("section", ["subjects", "stored"])
def test_every_stage_of_a_model_has_its_costs(project: Path, section: str):
    stages = []
    for file in ROOT.glob("stages/**/dvc.yaml"):
        chapter = file.relative_to(ROOT / "stages").parts[0]
        for name, entry in yaml.safe_load(file.read_text())["stages"].items():
            if entry.get("foreach", "").strip("${}") in REPEATED_OVER[section]:
                stages.append(f"{chapter}/{name}")
    rows = costs_of(mine()).rows(Sizes(), section)
    assert sorted(stage for row in rows for stage in row.stages) == sorted(stages)
    assert all(row.cpu > 0 and row.memory > 1 << 27 for row in rows)
    assert not any(row.guessed for row in rows)


def test_the_total_is_of_the_stages_that_make_model_runs(project: Path):
    """`make model` builds a page, and so whatever that needs."""
    makers = {path: stage for stage in declared.STAGES for path in declared.written(stage)}
    needed, new = set(), {"report/report_data"}
    while new:
        needed |= new
        paths = [path for stage in new for path in declared.read(stage)]
        new = {stage for written, stage in makers.items() if _holds_any(written, paths)} - needed
    rows = costs_of(mine()).rows(Sizes())
    extra = {stage for row in rows if row.extra for stage in row.stages}
    assert extra == {stage for row in rows for stage in row.stages} - needed
    counted = [row for row in rows if not row.extra]
    assert budget.total(rows) == pytest.approx(sum(row.wall for row in counted))


def _holds_any(written: str, paths: list[str]) -> bool:
    """Return whether one of the paths is what a stage wrote, or in a folder that it wrote."""
    return any(f"{path}/".startswith(f"{written}/") for path in paths)


def test_a_new_model_is_in_the_sections_over_which_stages_are_repeated(project: Path):
    """What costs.py takes for granted is what params.yaml says of a model that is added."""
    add.main(["mine", "models/mine"])
    add.main(["other", "models/mine", "--store-only"])
    settings = read()
    for section, name in (("subjects", "mine"), ("stored", "other")):
        repeated = set()
        for file in ROOT.glob("stages/*/dvc.yaml"):
            for entry in yaml.safe_load(file.read_text())["stages"].values():
                key = entry.get("foreach", "").strip("${}")
                if name in settings.get(key, {}):
                    repeated.add(key)
        assert repeated == REPEATED_OVER[section] - {"stored"}


def test_an_experiment_of_the_user_has_its_costs(project: Path, capsys: pytest.CaptureFixture):
    """Its queries are counted, its runs are guessed, and the estimate says so."""
    before = {row.name: row for row in costs_of(mine()).rows(Sizes())}
    new.main(["experiment", "own", "--chapter", "bag"])
    capsys.readouterr()
    costs = costs_of(mine())
    after = {row.name: row for row in costs.rows(Sizes())}
    assert after.keys() - before.keys() == {"bag/own_runs"}
    assert after["bag/own_runs"].guessed
    assert after["bag/own_runs"].count == 4 * costs.pairs(Sizes())  # 3 layers, and the clean run
    assert after["queries"].count == before["queries"].count + 2
    assert {"bag/own_interventions", "bag/own_effects"} < {*after["queries"].stages}
    assert budget.total([*after.values()]) > budget.total([*before.values()])
    status, text = output(capsys, "models/mine")
    assert status == 0
    assert re.search(r"^bag/own_runs +4,000 runs", text, re.MULTILINE)
    assert "guessed, with one intervention for each layer: bag/own_runs" in text


def mine() -> SubjectSettings:
    """Settings of the random Llama."""
    return load_subject("abacus").model_copy(update={"source": "models/mine"})


def test_runs_are_as_many_as_tables_have(project: Path):
    """The rows that `make` writes for the default subject, which has the random Llama's sizes."""
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=1387,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained("models/mine")
    Path("models/mine/model.safetensors").unlink()  # the small model's
    abacus = costs_of(mine())
    counted = {row.name: row.count for row in abacus.rows(Sizes())}
    for stage, runs in {
        "circuit/component_runs": 61_000,
        "circuit/head_circuit_runs": 154_000,
        "circuit/cut_runs": 6_000,
        "neurons/neuron_runs": 2_561_000,
        "neurons/neuron_circuit_runs": 115_000,
        "bag/bag_runs": 64_000,
        "bag/prompt_knockout_runs": 101_000,
        "theories/helix_runs": 145_000,
        "theories/theory_runs": 31_000,
    }.items():
        assert counted[stage] == runs, stage
    assert counted["bag/neuron_knockout_runs"] == pytest.approx(1_004_500, rel=0.6)  # about
    assert counted["bag/knockout_runs"] == pytest.approx(735_000, rel=0.5)
    assert counted["mediation/mediation_runs"] == pytest.approx(1_709_515, rel=0.01)
    assert counted["mediation/unit_mediation_runs"] == 1_537_200
    alone = {
        row.name: row.count for row in abacus.rows(Sizes(single_heads=False, single_units=False))
    }
    assert alone["mediation/mediation_runs"] == pytest.approx(576_000, rel=0.01)
    assert alone["mediation/unit_mediation_runs"] == 1_200  # the clean run


def test_runs_of_some_neurons_are_as_many_as_tables_have(project: Path):
    """A layer has at most all neurons patched; in early layers, no neuron is ablated alone."""
    costs = costs_of(mine())  # 48 neurons in each of 3 layers, of which 2 count as late
    pairs = costs.pairs(Sizes())
    for patched, sampled, both in ((10, 5, 15), (40, 20, 48), (10, 0, 10)):
        sizes = Sizes(patched_neurons=patched, sampled_neurons=sampled)
        assert costs.neurons(sizes) == (5 * both + 1) * pairs
        matching = SCORED * 48  # about
        knockouts = 2 * 2 * min(both, matching) + 1
        assert costs.neuron_knockouts(sizes) == pytest.approx(knockouts * pairs)
        assert costs.units(sizes) == (2 * (both + min(patched + sampled, 32)) + 1) * 1200
        assert costs.attributions(sizes) == 5 * 48 * pairs
        rows = {row.name: row for row in costs.rows(sizes)}
        assert rows["heuristics/label_rescores"].count == 2 * both * 4


def test_pairs_of_circuits_share_the_tokens_that_all_prompts_begin_with(project: Path):
    """Many pairs share what fits a pass."""
    costs = costs_of(mine())
    length, own = 35, 3  # so that 30 tokens are shared
    costs.prompts, seeds = PromptLengths(length, own), len(costs.params["pairs"]["seeds"])

    def tokens(pairs_per_split: int) -> float:
        return costs.in_circuits(Sizes(pairs_per_split=pairs_per_split))

    pairs = 6 * seeds / LENGTHS  # of one operator and length
    assert tokens(6) == pytest.approx(5 + 30 / pairs)
    assert tokens(10_000) == pytest.approx(5 + 30 / (costs.runs.rows / length))
    costs.prompts = PromptLengths(5, 2)  # too few tokens to share
    assert tokens(6) == tokens(10_000) == 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5h", 18_000), ("90m", 5_400), ("1h30m", 5_400), (" 24h ", 86_400)],
)
def test_a_duration_is_hours_and_minutes(text: str, seconds: int):
    assert budget.seconds(text) == seconds
    assert budget.seconds(budget.duration(seconds)) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "5", "h", "5 h", "1.5h", "-1h", "30s", "0h", "0m", "5h30", "9999h", "90m1h", "fünf"],
)
def test_what_is_no_duration_is_refused_with_the_form(text: str):
    with pytest.raises(
        ParamsError,
        match=r"--budget .* is not allowed; a duration is hours and minutes, such as 5h, 90m",
    ):
        budget.seconds(text)


def test_sizes_fill_a_budget_and_what_they_give_up_is_said(project: Path):
    config, _ = LARGE["Pythia-6.9B"]
    config.architectures = ["GPTNeoXForCausalLM"]
    config.save_pretrained("models/mine")
    Path("models/mine/model.safetensors").unlink()  # the small model's
    large = costs_of(mine(), side=100, speed=1e13)
    whole, least = (budget.total(large.rows(sizes)) for sizes in (Sizes(), budget.fewest(large)))
    assert least < whole / 2
    assert budget.fitted(large, "subjects", whole) == Sizes()
    assert budget.fitted(large, "subjects", 0.9 * least) is None
    for allowed in (1.1 * least, (least + whole) / 2):
        sizes = budget.fitted(large, "subjects", allowed)
        assert 0.7 * allowed < budget.total(large.rows(sizes)) <= allowed
        neurons, pairs, circuits, templates, *singles = budget.given_up(large, sizes)
        largest = f"the {sizes.patched_neurons:,} of largest attribution"
        random = f"{sizes.sampled_neurons} random ones"
        assert neurons == f"neurons patched: {largest} and {random} of 16,384 of a layer"
        assert len(singles) == (sizes.single_heads is False) + (sizes.single_units is False)
        assert (
            pairs
            == f"pairs of prompts: {sizes.pairs_per_split} of 50 for each operator, split and seed"
        )
        drawn = f"{sizes.random_head_circuits} of 10 of each size"
        assert circuits == f"random circuits of heads: {drawn}"
        assert f"arithmetic {sizes.pairs_per_template['arithmetic']} of 50" in templates
    shortest = re.search(r"give --budget (\w+) or more", budget.refusal(large, "subjects", "1h"))[1]
    assert budget.fitted(large, "subjects", budget.seconds(shortest)) is not None


def test_few_patched_neurons_give_up_those_that_operators_share(project: Path):
    costs = costs_of(mine())
    least = min(costs.params["operator_overlaps"]["operator_ks"])
    for patched in (least - 1, least):
        lines = [*budget.given_up(costs, Sizes(patched_neurons=patched))]
        shared = f"neurons that operators share, which take {least} patched neurons of a layer"
        assert (shared in lines) == (patched < least)


def large_model() -> SubjectSettings:
    """Return the settings of a model too large for an evening."""
    config, _ = LARGE["Pythia-6.9B"]
    config.architectures = ["GPTNeoXForCausalLM"]
    config.save_pretrained("models/mine")
    for file in Path("models/mine").glob("*.safetensors"):
        file.unlink()
    return mine()


def test_the_default_budget_is_an_evening(project: Path, capsys: pytest.CaptureFixture):
    default = r"5\.0 h \(the default; for larger sizes, for example --budget 24h\)"
    fits = "; all stages fit it with the usual sizes$"
    for more, expected in (((), default + fits), (("--budget", "8h"), rf"8\.0 h{fits}")):
        status, text = output(capsys, "models/mine", *more)
        assert status == 0
        assert re.search(f"^budget        {expected}", text, re.MULTILINE)
        assert "\ngiven up " not in text
    large_model()
    status, text = output(capsys, "models/mine", "--dtype", "bfloat16")
    assert status == 0
    assert re.search(f"^budget        {default}[;,]", text, re.MULTILINE)
    assert "\ngiven up " in text
    assert "\nfixed         no size shortens these stages: " in text


def test_what_no_size_shortens_is_named_with_the_keys_that_do(project: Path):
    settings = large_model()
    large = costs_of(settings, speed=1e12)
    fixed = [row.name for row in budget.unaffected(large, "subjects")]
    for stage in ("store/dump", "heuristics/scores", "heuristics/permutation_tests"):
        assert stage in fixed
    assert "neurons/neuron_runs" not in fixed
    whole = budget.total(budget.unaffected(large, "subjects"))
    assert [*budget.savings(large, "subjects", 1.01 * whole)] == []
    first, _, *keys = budget.savings(large, "subjects", 0.99 * whole)
    assert first.startswith("fixed         no size shortens these stages: ")
    assert "heuristics/permutation_tests" in first
    entries = {
        "layers: [16, …, 31] (the later half)": ({"layers": [*range(16, 32)]}, 300),
        "operators: [add]": ({"operators": ["add"]}, 300),
        "largest_operand: 149": ({"largest_operand": 149}, 150),
    }
    assert len(keys) == len(entries)
    for line, (text, (entry, side)) in zip(keys, entries.items(), strict=True):
        smaller = costs_of(settings.model_copy(update=entry), side, speed=1e12)
        seconds = budget.total(budget.unaffected(smaller, "subjects"))
        assert seconds < whole
        times = f"{budget.spoken(seconds)} instead of {budget.spoken(whole)}"
        assert line.strip() == f"{text}: {times}"


@pytest.mark.parametrize("more", [(), ("--entry", "entry.yaml")])
def test_a_budget_that_nothing_fits_is_refused_before_anything_is_written(
    project: Path, more: tuple[str, ...]
):
    Path("entry.yaml").write_text("dtype: float64")
    text = Path("params.yaml").read_text()
    with pytest.raises(
        SystemExit,
        match=r"--budget 1m is too short: the smallest sizes take .* give --budget \w+ or more",
    ):
        add.main(["mine", "models/mine", "--budget", "1m", *more])
    assert Path("params.yaml").read_text() == text
    with pytest.raises(ParamsError, match="--budget 'soon' is not allowed"):
        add.main(["mine", "models/mine", "--budget", "soon"])


def test_a_description_that_takes_long_is_ended(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    monkeypatch.setattr(description, "LONGEST", 0.001)
    status, text = output(capsys, "models/mine")
    assert status == 1
    assert "But: models/mine: describing it takes more than 0.001 s of CPU time" in text
    assert "a number in config.json or the tokenizer is far too large" in text


def test_a_model_without_mlps_is_a_problem_that_is_said(
    project: Path, capsys: pytest.CaptureFixture
):
    config: MambaConfig = families.configured("mamba")
    config.save_pretrained("models/mine")
    status, text = output(capsys, "models/mine")
    assert status == 1
    assert "But: layer 0, MambaBlock, has no MLP, only MambaMixer" in text


@pytest.mark.parametrize(
    ("options", "setting", "line"),
    [
        (
            (),
            None,
            "nothing before each prompt, as the tokenizer itself puts nothing there; --bos",
        ),
        (
            ("--bos",),
            True,
            "<s> before each prompt, as --bos says\n"
            "              the tokenizer itself puts nothing there",
        ),
        (("--no-bos",), False, "nothing before each prompt, as --no-bos says"),
    ],
)
def test_bos_is_what_the_tokenizer_does_unless_the_options_say_otherwise(
    project: Path,
    options: tuple[str, ...],
    setting: bool | None,
    line: str,
    capsys: pytest.CaptureFixture,
):
    vocabularies.by_digit().save_pretrained("models/mine")
    add.main(["mine", "models/mine", *options])
    assert f"BOS           {line}" in capsys.readouterr().out
    assert load_subject("mine").bos is setting


def test_a_model_with_fewer_positions_than_prompts_have_tokens_is_refused(
    project: Path,
    capsys: pytest.CaptureFixture,
):
    model = random_model("llama", max_position_embeddings=4)
    model.resize_token_embeddings(1400, mean_resizing=False)
    model.save_pretrained("models/mine")
    status, text = output(capsys, "models/mine")
    assert status == 1
    assert "But: the longest prompt has 5 tokens, and the model has 4 positions" in text


def test_a_folder_whose_weights_are_a_pickle_alone_is_refused(project: Path):
    Path("models/mine/model.safetensors").rename("models/mine/pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle, which may run code"):
        check.main(["models/mine"])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "gpt2",
            "no model folder at gpt2, and it does not name a model of the Hub",
        ),
        ("models/typo", "no model folder at models/typo"),
        ("./typo/mine", r"no model folder at \./typo/mine"),
        ("models/x.gguf", "no GGUF file at models/x.gguf"),
        ("models/mine/config.json", "config.json is a file; give the folder that contains it"),
        ("models/broken", "models/broken is a link to nowhere, which does not exist"),
        (
            "https://huggingface.co/org/mine",
            "is an address; write a model of the Hub as org/name@COMMIT",
        ),
    ],
)
def test_a_source_that_is_no_model_is_told_from_one_of_the_hub(
    project: Path,
    source: str,
    sentence: str,
):
    Path("models/broken").symlink_to("nowhere")
    with pytest.raises(ModelError, match=sentence):
        check.main([source])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere", "no model folder at nowhere"),
        ("models", "models is not a model folder: it has no config.json"),
    ],
)
def test_what_is_no_model_is_refused_with_the_way_out(project: Path, source: str, sentence: str):
    with pytest.raises(SystemExit, match=sentence):
        check.main([source])


def test_a_model_is_added_by_its_one_entry(project: Path, capsys: pytest.CaptureFixture):
    before, file = read(), Path("params.yaml")
    text = file.read_text()
    add.main(["mine", "models/mine", "--template", "{op1} {symbol} {op2} =", "--dtype", "float32"])
    printed = capsys.readouterr().out
    assert "dvc repro stages/store/dvc.yaml:dump@mine" in printed
    assert printed.splitlines()[-1].endswith("make model NAME=mine")
    settings = load_subject("mine")
    assert (settings.source, settings.dtype, settings.template) == (
        "models/mine",
        "float32",
        "{op1} {symbol} {op2} =",
    )
    after = read()
    assert [*after["subjects"]] == [*before["subjects"], "mine"]
    assert {key: value for key, value in after["with_pairs"].items() if key != "mine"} == before[
        "with_pairs"
    ]
    assert "mine" in after["with_mediation"]
    assert [line for line in file.read_text().splitlines() if line not in text.splitlines()] == [
        "  mine:",
        '    source: "models/mine"',
        '    revision: "from models/mine"',
        '    dtype: "float32"',
        '    template: "{op1} {symbol} {op2} ="',
    ]  # fmt: skip


def test_the_progress_of_a_first_run_knows_what_each_stage_of_an_added_model_takes(project: Path):
    Path(".dvc").mkdir()
    add.main(["mine", "models/mine"])
    estimates = json.loads(pipeline.ESTIMATES.read_text())
    assert min(estimates.values()) >= 0
    assert estimates["stages/store/dvc.yaml:dump@mine"] > 0
    with chdir(ROOT):
        stages, _ = pipeline.plan(["stages/report/dvc.yaml:report_data@planted"], False)
    of_chapters = {stage for stage in stages if stage.endswith("@planted")}
    assert {stage.replace("@planted", "@mine") for stage in of_chapters} <= estimates.keys()


def test_an_entry_and_its_sizes_come_from_a_file(project: Path, capsys: pytest.CaptureFixture):
    """Options given beside the file count; the sizes are neither fitted nor changed."""
    entry = ROOT / "examples/qwen/entry.yaml"
    add.main(["mine", "models/mine", "--entry", str(entry), "--largest-operand", "19", "--no-bos"])
    assert f"as {entry} says" in capsys.readouterr().out
    written, settings = yaml.safe_load(entry.read_text()), load_subject("mine")
    assert settings.template == written["template"]
    assert (settings.dtype, settings.largest_operand, settings.bos) == ("float32", 19, False)
    assert load_sizes("mine").model_dump(exclude_none=True) == written["sizes"]


def test_an_entry_for_a_second_digit_is_compared_with_the_first(project: Path):
    """The second entry is added as the example does it, to a model that has a first one."""
    folder = ROOT / "examples/qwen"
    options = ["--largest-operand", "19", "--no-bos", "--answer-token", "0"]
    for name, file in (("qwen", "entry.yaml"), ("qwen-second", "second.yaml")):
        add.main([name, "models/mine", "--entry", str(folder / file), *options])
    second = yaml.safe_load((folder / "second.yaml").read_text())
    assert read()["digits"]["qwen-digits"] == second["digits"]["qwen-digits"]
    assert load_subject("qwen-second").operators == ["add", "subtract"]
    before = Path("params.yaml").read_text()
    with pytest.raises(ParamsError, match="has qwen-digits already, under digits"):
        add.main(["other", "models/mine", "--entry", str(folder / "second.yaml"), *options])
    assert Path("params.yaml").read_text() == before


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("digits: {m: {first: a}}", (), "digits.m.second is missing"),
        ("layer: [1]", (), "names 'layer'; an entry's keys are answer_token, .* and sizes"),
        ("sizes: {pairs: 3}", (), "sizes.pairs"),
        (
            "sizes: {pairs_per_split: 3}",
            ("--budget", "5h"),
            "has sizes, which --budget would choose",
        ),
        (None, (), "no file entry.yaml for --entry"),
    ],
)
def test_a_file_that_is_not_an_entry_is_refused(
    project: Path,
    text: str | None,
    more: tuple[str, ...],
    message: str,
):
    if text:
        Path("entry.yaml").write_text(text)
    before = Path("params.yaml").read_text()
    with pytest.raises(ParamsError, match=message):
        add.main(["mine", "models/mine", "--entry", "entry.yaml", *more])
    assert Path("params.yaml").read_text() == before


@pytest.mark.parametrize("family", ["llama", "bamba"])
def test_a_model_for_the_store_alone_stands_under_stored(
    project: Path, family: str, capsys: pytest.CaptureFixture
):
    """By wish, or where layers without heads leave nothing to intervene on."""
    wish = ["--store-only"] if family == "llama" else []
    if family == "bamba":
        model = families.random_model("bamba", vocab_size=1020, mamba_chunk_size=8)
        shutil.rmtree("models/mine")
        model.save_pretrained("models/mine")
        tokenizers.build(999, ["+ - * / = x ÷"]).save_pretrained("models/mine")
    add.main(["mine", "models/mine", *wish])
    assert "params.yaml has it now, under stored." in capsys.readouterr().out
    settings = check_settings(Params, read())
    for section in ("stored", "known", "with_activations", "with_figures"):
        assert "mine" in getattr(settings, section)
    for section in ("subjects", "with_pairs", "with_mediation"):
        assert "mine" not in getattr(settings, section)
    add.main(["other", "models/mine", *wish])
    assert [*read()["stored"]] == ["mine", "other"]


def test_the_next_step_of_a_stored_model_is_its_whole_chapter_store(
    project: Path, capsys: pytest.CaptureFixture
):
    add.main(["mine", "models/mine", "--store-only"])
    last = capsys.readouterr().out.splitlines()[-1]
    _, _, command = last.partition("dvc repro ")
    assert "make" not in last
    shutil.copy(ROOT / "dvc.yaml", "dvc.yaml")
    planned = pipeline.plan(command.split(), False)[0]
    of_store = {stage.partition(":")[2] for stage in planned if stage.startswith("stages/store/")}
    named = {stage for row in costs_of(mine()).rows(Sizes(), "stored") for stage in row.stages}
    assert of_store == {f"{stage.partition('/')[2]}@mine" for stage in named}


@pytest.mark.parametrize(
    ("name", "sentence"), [("abacus", "has abacus already, under subjects"), ("No.1", "subjects")]
)
def test_a_name_that_cannot_be_is_refused_before_any_work(project: Path, name: str, sentence: str):
    text = Path("params.yaml").read_text()
    with pytest.raises(ParamsError, match=sentence):
        add.main(["--chat", name, "models/nobodys"])
    assert Path("params.yaml").read_text() == text


def test_a_model_with_a_problem_is_not_added(project: Path):
    own_tokenizer([]).save_pretrained("models/mine")
    text = Path("params.yaml").read_text()
    with pytest.raises(SystemExit, match="nothing was added"):
        add.main(["mine", "models/mine"])
    assert Path("params.yaml").read_text() == text


def test_a_model_is_checked_and_added_by_commands(tmp_path: Path):
    copy_project(tmp_path / "project")
    made(tmp_path / "project/models/mine")
    checked = bag_in(tmp_path / "project", "check", "models/mine")
    assert checked.stdout.splitlines()[-1] == "It can be added: bag add NAME models/mine"
    added = run_in(tmp_path / "project", "bag", "add", "mine", "models/mine")
    assert "params.yaml has it now" in added.stdout
    assert (
        "probes@mine"
        in run_in(tmp_path / "project", "dvc", "stage", "list", "stages/circuit/dvc.yaml").stdout
    )


def test_costs_are_those_of_the_docs(project: Path):
    """Those for Llama-3-8B, with fewer queries and keys."""
    text = (ROOT / "docs/cluster.md").read_text()
    late, first, flop = (
        float(re.search(rf"([\d.]+) {what}", text)[1])
        for what in ("M runs x 4.3", "M x 41.6", "million TFLOP")
    )
    config, _ = LARGE["Llama-3-8B"]
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained("models/mine")
    Path("models/mine/model.safetensors").unlink()  # the small model's
    large = costs_of(mine(), speed=0.5)  # a multiplication and an addition: two operations a second
    draws, draw, hours = re.search(
        r"maps x (\d+) relabellings x ([\d.]+) ms \| (\d+) core-hours", text
    ).groups()
    scores, score_hours = re.search(
        r"`scores`: maps x .*?\(([\d.]+) ms for 90,000 cells.*?\| ([\d.]+) core-hours", text
    ).groups()
    assert int(draws) == DRAWS
    times = replace(KERNELS, draw=float(draw) / 1e3, scores=float(scores) / 1e3)
    large.rates = replace(large.rates, kernels=times)
    large.late = 16  # of 32, as published
    rows = {row.name: row.cpu / 3600 for row in large.rows(Sizes())}
    assert rows["heuristics/permutation_tests"] == pytest.approx(int(hours), rel=0.05)
    assert rows["heuristics/scores"] == pytest.approx(float(score_hours), rel=0.05)
    runs = large.neurons(Sizes())
    assert runs / 1e6 == pytest.approx(late + first, rel=0.01)
    assert large.forward(runs, large.swept()) == pytest.approx(flop * 1e18, rel=0.2)


def test_maps_are_measured_on_this_machine(project: Path):
    """The functions themselves are timed, on a grid of the model's size."""
    times = kernels.Measurement(20, "add").times()
    assert (times.cells, times.grid) == (400, 400)
    for field in fields(times):
        assert getattr(times, field.name) > 0, field.name
    assert times.scores < 0.1
    larger = kernels.Measurement(100, "subtract").times()
    assert (larger.cells, larger.grid) == (5050, 10_000)
    assert times.spectrum < larger.spectrum
    assert times.scores < larger.scores


def test_measured_maps_are_remembered_for_a_day_and_for_their_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernels, "KEPT", project / "kept")
    measured = kernels.times(20, "add")
    [file] = (project / "kept").iterdir()
    other = replace(measured, draw=123.0)
    file.write_text(json.dumps(vars(other)))
    assert kernels.times(20, "add") == other
    os.utime(file, (0, 0))
    assert kernels.times(20, "add") == measured
    file.write_text("{")
    assert kernels.times(20, "add") == measured
    settings = Path("stages/heuristics/params.yaml")
    settings.write_text(settings.read_text() + "# another\n")
    kernels.times(20, "add")
    assert len(list((project / "kept").iterdir())) == 2


def test_a_setting_that_stops_the_measurement_is_named(project: Path):
    file = Path("stages/heuristics/params.yaml")
    file.write_text(file.read_text().replace("least_cells: 10 ", "least_cells: ten "))
    with pytest.raises(ParamsError, match=r"scores\.least_cells = 'ten'"):
        kernels.Measurement(20, "add").times()


def test_maps_cost_what_their_kernels_take_here(project: Path):
    """Twice the time of a kernel is twice the time of its stage, whatever the operators."""
    costs = costs_of(mine())

    def row(stage: str, **times: float) -> CostRow:
        costs.rates = replace(costs.rates, kernels=replace(KERNELS, **times))
        [selected] = [row for row in costs.rows(Sizes()) if stage in row.stages]
        return selected

    for stage, kernel in {
        "heuristics/permutation_tests": "draw",
        "heuristics/spectra": "spectrum",
        "heuristics/discovery_search": "search",
        "heuristics/explained": "explained",
    }.items():
        once = row(stage, **{kernel: 1.0})
        twice = row(stage, **{kernel: 2.0})
        assert twice.cpu - once.cpu == pytest.approx(once.cpu - once.alone), stage
    assert row("heuristics/permutation_tests").count == 48 * 3 * 4


def test_answers_on_a_grid_are_those_of_the_cells(project: Path):
    """Compare with the cells of the query, for an operator with few and one with many."""
    cells = (ROOT / "stages/corpus/cells.sql").read_text()
    assert "op1 > 0 and op2 > 0 then (op1 // op2)" in cells
    divided = answers_on_grid("divide", range(12), 5)
    assert (divided[0] == -1).all()
    assert (divided[:, 0] == -1).all()
    assert divided[11, 2] == 5
    assert divided[11, 1] == -1  # 11 is above the largest answer
    assert (answers_on_grid("subtract", range(12), 999) >= 0).sum() == 78
    assert answers_on_grid("multiply", [3, 40], 999).tolist() == [[9, 120], [120, -1]]


def test_the_memory_and_disk_of_a_dump_follow_its_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    """A block of prompts fits half of dump.memory_mib; float32 takes twice the disk."""

    def dump(**settings: object) -> CostRow:
        costs = costs_of(mine(), speed=1e9)
        costs.a = replace(costs.a, neurons=5000)
        monkeypatch.setitem(costs.params, "dump", costs.params["dump"] | settings)
        [row] = [row for row in costs.rows(Sizes()) if "store/dump" in row.stages]
        return row

    wide, narrow = dump(memory_mib=100_000), dump(memory_mib=128)
    assert wide.memory > narrow.memory
    half, whole = dump(store_dtype="float16"), dump(store_dtype="float32")
    assert 1.5 < whole.disk / half.disk <= 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("abacus-digits", "has abacus-digits already, under train"),
        ("abacus-three-operands", "has abacus-three-operands already, under finetuned"),
        ("planted", "has planted already, under subjects"),
        ("from-hub", "stages/subjects/params.yaml has from-hub already, under hub"),
        ("shared", "the page calls shared what belongs to no single model"),
        *(
            (folder, f"has a folder data/{folder}")
            for folder in ("models", "corpus", "bag", "report")
        ),
    ],
)
def test_a_name_that_would_stop_every_stage_is_refused(project: Path, name: str, sentence: str):
    chapter, params = Path("stages/subjects/params.yaml"), Path("params.yaml")
    chapter.write_text(
        chapter.read_text().replace(
            "hub: {}", f"hub:\n  from-hub: {{repo: org/mine, commit: '{COMMIT}'}}"
        )
    )
    before = chapter.read_text() + params.read_text()
    with pytest.raises(ParamsError, match=sentence):
        add.main([name, "models/mine"])
    assert chapter.read_text() + params.read_text() == before


def test_a_model_of_the_hub_is_added_to_both_files_or_to_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    chapter, params = Path("stages/subjects/params.yaml"), Path("params.yaml")
    options = check_options.parser("add").parse_args(["mine", "models/mine", "--store-only"])
    report = description.checked(options)
    monkeypatch.setattr(description, "checked", lambda options: report)
    whole, before = params.read_text(), chapter.read_text()
    params.write_text(whole.replace("stored: &stored {}", "stored: &stored {other: *abacus}"))
    with pytest.raises(ParamsError, match="no section `stored:` with a line for each entry"):
        add.main(["mine", f"org/mine@{COMMIT}"])
    assert chapter.read_text() == before
    params.write_text(whole)
    add.main(["mine", f"org/mine@{COMMIT}"])
    assert read()["hub"] == {"mine": {"repo": "org/mine", "commit": COMMIT}}
    assert read()["stored"]["mine"]["source"] == "data/models/mine"
