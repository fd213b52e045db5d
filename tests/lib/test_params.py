"""Test that wrong settings stop the pipeline; the message names the key, value and range."""

import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.serialize import parse_yaml
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from stages import settings as checked
from stages.lib.core import settings as sections
from stages.lib.subject import Subject
from stages.settings import Params
from tests.conftest import run_in
from tests.micro import FILES, ROOT, SHIPPED, TUNED, copy_project, merged, write_settings
from tests.micro import changed as with_changes

FIRST, SECOND = "abacus-digits-first", "abacus-digits-second"


def digits(
    first: str, second: str, third: str, source: str = "data/models/abacus-digits/step-06000"
) -> dict[str, str]:
    """Return an entry of the section digits."""
    return {"source": source, "first": first, "second": second, "third": third}


def test_two_digits_are_compared_if_the_third_repeats_the_second():
    change = {"digits": {"two": digits(FIRST, SECOND, SECOND)}}
    params = sections.check(Params, merged(SHIPPED, change))
    assert params.digits["two"].entries == [FIRST, SECOND]
    assert len(params.digits["abacus-digits"].entries) == 3


def test_the_entries_of_the_example_are_allowed_together():
    """`make example-digits` adds both, and differs from this in `revision` alone."""
    entries: dict[str, dict] = {}
    sizes: dict[str, dict] = {}
    for name, file in (("qwen", "entry.yaml"), ("qwen-second", "second.yaml")):
        entry = yaml.safe_load((ROOT / "examples/qwen" / file).read_text())
        sizes[name], compared = entry.pop("sizes"), entry.pop("digits", {})
        entries[name] = entry | {"source": "data/models/qwen", "revision": "GGUF"}
    added = {"subjects": entries, "sizes": sizes, "digits": compared}
    params = sections.check(Params, with_changes(added))
    assert params.digits["qwen-digits"].entries == [*entries]
    first, second = (params.subjects[name] for name in entries)
    assert second == first.model_copy(update={"answer_token": 1, "operators": ["add", "subtract"]})
    assert sizes["qwen"] == sizes["qwen-second"]


def test_the_shipped_settings_are_allowed():
    assert (
        sections.check(Params, SHIPPED).train["abacus"].steps == SHIPPED["train"]["abacus"]["steps"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": {"abacus": {"threads": "8"}}}, ["train.abacus.threads", "'8'", "valid integer"]),
        (
            {"train": {"abacus": {"threads": 0}}},
            ["train.abacus.threads", "0", "greater than or equal to 1"],
        ),
        ({"dump": {"store_dtype": "int8"}}, ["dump.store_dtype", "int8", "'float16' or 'float32'"]),
        (
            {"train": {"abacus": {"thread": 2}}},
            ["train.abacus.thread", "2", "no such key", "threads"],
        ),
        ({"dumb": {}}, ["dumb", "no such key", "dump", "train"]),
        (
            {"cells": {"held_out_percent": 80}},
            ["cells.held_out_percent", "80", "less than or equal to 50"],
        ),
        (
            {"train": {"abacus": {"checkpoints": [0, 5]}}},
            ["train.abacus", "checkpoints must rise and end with steps"],
        ),
        (
            {"train": {"abacus": {"model": {"heads": 5}}}},
            ["train.abacus.model", "multiple of 2 x heads"],
        ),
        ({"tasks": {"shots": [0.5]}}, ["tasks", "shots must sum to 1"]),
        ({"tasks": {"operators": {"add": None}}}, ["tasks", "operators lacks add"]),
        (
            {"tasks": {"operators": {"add": {"symbol": "-"}}}},
            ["tasks", "symbol '-' is that of two operators"],
        ),
        (
            {"tasks": {"operators": {"add": {"symbol": "{x}"}}}},
            ["tasks.operators.add.symbol", "'{x}'"],
        ),
        ({"tasks": {"operators": {"add": {"symbol": "+\0"}}}}, ["tasks.operators.add.symbol"]),
        (
            {"cells": {"held_out_percent": 0}},
            ["cells.held_out_percent", "0", "greater than or equal to 1"],
        ),
        (
            {"cells": {"largest_operand": 1}},
            ["cells.largest_operand", "1", "greater than or equal to 9"],
        ),
        (
            {"permutation_tests": {"smallest_chance_corrected": 0.5}},
            ["threshold 0.35 is below smallest_chance_corrected, 0.5"],
        ),
        (
            {"scores": {"smallest_chance_corrected": 0.4}},
            [
                "permutation_tests.smallest_chance_corrected is below "
                "scores.smallest_chance_corrected, 0.4"
            ],
        ),
        (
            {"tasks": {"arithmetic": ["{x} {symbol} {y} ="]}},
            ["tasks.arithmetic", "at least 2 items"],
        ),
        (
            {"tasks": {"arithmetic": ["{x} {verb} ?", "{x} {symbol} {y} ="]}},
            ["tasks.arithmetic.0", "lacks the placeholder {y}"],
        ),
        (
            {"tasks": {"arithmetic": ["{x} {y}", "{x} {symbol} {y} ="]}},
            ["tasks.arithmetic.0", "{symbol}, {verb}, {noun}"],
        ),
        (
            {"tasks": {"retrieval": ["{x} {y} {a} {b} {q} {secret}"]}},
            ["tasks.retrieval.0", "{secret} is no placeholder here"],
        ),
        ({"tasks": {"retrieval": ["{x} {y} {a} {b} {q"]}}, ["tasks.retrieval.0", "expected '}'"]),
        (
            {"tasks": {"retrieval": ["{x:>9} {y} {a} {b} {q}"]}},
            ["tasks.retrieval.0", "a name in braces and nothing else"],
        ),
        (
            {"tasks": {"retrieval_things": ["pear tree", "cars"]}},
            ["tasks.retrieval_things.0", "'pear tree'"],
        ),
        (
            {"tasks": {"factual": {"kind": "{entity}\n"}}},
            ["tasks.factual.kind", "control character"],
        ),
        ({"tasks": {"factual": {"colour": "{entity}"}}}, ["tasks.factual.colour", "'capital'"]),
        ({"tasks": {"factual": {"kind": None}}}, ["tasks", "factual lacks kind"]),
        (
            {"heuristics": {"grids": {"paper": {"range_lengths": {"divide": None}}}}},
            ["heuristics.grids.paper", "range_lengths lacks divide"],
        ),
        (
            {"train": {"abacus": {"curriculum": [{"steps": 6500, "batch": {"counting": 5}}]}}},
            [
                "train.abacus",
                "curriculum has 6500 steps, which leaves none of 6500 to the mixture of all tasks",
            ],
        ),
        (
            {
                "train": {
                    "abacus": {
                        "numbers": "digits",
                        "curriculum": [{"steps": 5, "batch": {"counting": 3}}],
                    }
                }
            },
            ["train.abacus", "curriculum has counting, which asks for numbers of one token"],
        ),
        (
            {"train": {"abacus": {"curriculum": [{"steps": 5, "batch": {"sums": 3}}]}}},
            ["train.abacus.curriculum", "sums"],
        ),
        (
            {"train": {"abacus": {"numbers": "words"}}},
            ["train.abacus.numbers", "'words'", "tokens"],
        ),
        (
            {"subjects": {"abacus": {"source": "models/x.gguf"}}},
            ["subjects.abacus.source", "'models/x.gguf'", "bag add NAME FILE.gguf"],
        ),
        (
            {"train": {"planted": SHIPPED["train"]["abacus"]}},
            ["data/models/planted is made by two of train, plant, finetune, hub and gguf"],
        ),
        (
            {"train": {"abacus": {"betas": [1.0, 1.0]}}},
            ["train.abacus.betas.0", "1.0", "less than 1"],
        ),
        (
            {"train": {"abacus": {"learning_rate": float("inf")}}},
            ["train.abacus.learning_rate", "finite number"],
        ),
        (
            {"train": {"abacus": {"model": {"layers": 10**9}}}},
            ["train.abacus.model.layers", "less than or equal to 200"],
        ),
        (
            {"train": {"abacus": {"steps": 7000, "checkpoints": [500, 7000]}}},
            ["abacus-step-00250 is step 250", "[500, 7000]"],
        ),
        ({"pairs": {"seeds": [10**22]}}, ["pairs.seeds.0", "less than 4294967296"]),
        (
            {"subjects": {"abacus": {"revision": date(2024, 5, 1)}}},
            ["subjects.abacus.revision = 2024-05-01", "a date; put it in quotes"],
        ),
        (
            {"subjects": {"no": SHIPPED["subjects"]["abacus"]}},
            ["subjects", "no", "YAML reads this word"],
        ),
        ({"subjects": {7: SHIPPED["subjects"]["abacus"]}}, ["subjects", "7", "pattern"]),
        (
            {"labels": {"level": 0.07}},
            ["labels.level is 0.07", "label_calibration.levels has 0.01"],
        ),
        *(
            (
                {"subjects": {"abacus": {"template": template}}},
                ["subjects.abacus.template", "{op1}, {symbol} and {op2}"],
            )
            for template in (
                "",
                "{",
                "{op1}{op2}=",
                "{op1}{symbol}{op2}{x}",
                "{op1:>5}{symbol}{op2}",
                "{op1!r}{symbol}{op2}",
                "{op1}{symbol}{op2}\0",
                "{op1}{op1}{symbol}{op2}",
                "{op1.__class__}{symbol}{op2}",
            )
        ),
        (
            {"subjects": {"abacus": {"operators": ["power"]}}},
            ["subjects.abacus.operators", "power", "'add'"],
        ),
        (
            {"subjects": {"Bad Name": SHIPPED["subjects"]["abacus"]}},
            ["subjects", "Bad Name", "pattern"],
        ),
        (
            {"checkpoints": {"abacus": SHIPPED["subjects"]["abacus"]}},
            ["abacus is both a subject and a checkpoint"],
        ),
        (
            {"subjects": {"other": SHIPPED["subjects"]["abacus"]}},
            ["with_pairs must be the subjects and the checkpoints"],
        ),
        (
            {"with_pairs": {"abacus": None}},
            [
                "with_pairs must be the subjects and the checkpoints",
                "`with_pairs: {<<: [*subjects, *checkpoints]}`",
            ],
        ),
        (
            {"stored": {"abacus": SHIPPED["subjects"]["abacus"]}},
            ["abacus is in stored and elsewhere"],
        ),
        (
            {"stored": {"mine": SHIPPED["subjects"]["abacus"]}},
            ["known must be `known: {<<: [*subjects, *checkpoints, *finetuned, *stored]}`"],
        ),
        (
            {"with_activations": {"planted": None}},
            [
                "with_activations must be "
                "`with_activations: {<<: [*subjects, *checkpoints, *stored]}`"
            ],
        ),
        (
            {"with_figures": {"planted": None}},
            ["with_figures must be `with_figures: {<<: [*subjects, *stored]}`"],
        ),
        (
            {"with_mediation": {"planted": None}},
            ["with_mediation must be the subjects, the checkpoints and the finetuned"],
        ),
        (
            {"sizes": {"abacus": {"patched_neurons": 0}}},
            ["sizes.abacus.patched_neurons", "0", "greater than or equal to 1"],
        ),
        (
            {"sizes": {"abacus": {"pairs_per_split": 0}}},
            ["sizes.abacus.pairs_per_split", "0", "greater than or equal to 1"],
        ),
        (
            {"subjects": {"abacus": {"runs": {"memory_mib": 1}}}},
            ["subjects.abacus.runs.memory_mib", "1", "greater than or equal to 128"],
        ),
        (
            {"sizes": {"abacus": {"pairs_per_template": {"riddles": 1}}}},
            ["sizes.abacus.pairs_per_template names 'riddles'", "arithmetic"],
        ),
        (
            {"sizes": {"abacus": {"patched": 30}}},
            ["sizes.abacus.patched", "no such key", "patched_neurons"],
        ),
        (
            {"sizes": {"nobody": {"patched_neurons": 30}}},
            ["sizes names 'nobody'", "abacus"],
        ),
        (
            {"sizes": {"abacus": {"patched_neurons": 30}}},
            ["sized must be `sized: {<<: [*sizes, *subjects, *checkpoints, *finetuned, *stored]}`"],
        ),
        (
            {"subjects": {"abacus": {"patched_neurons": 30}}},
            ["subjects.abacus", "patched_neurons is not set in a model's entry", "under `sizes`"],
        ),
        (
            {"finetune": {TUNED: {"task": "four_operands"}}},
            [f"finetune.{TUNED}.task", "four_operands", "'three_operands'"],
        ),
        (
            {"finetune": {TUNED: {"batch": 0}}},
            [f"finetune.{TUNED}.batch", "0", "greater than or equal to 1"],
        ),
        (
            {"finetune": {"planted": SHIPPED["finetune"][TUNED]}},
            ["planted is a subject or a checkpoint"],
        ),
        (
            {"finetuned": {"abacus": SHIPPED["subjects"]["abacus"]}},
            ["abacus is a subject or a checkpoint"],
        ),
        (
            {"finetuned": {"other": SHIPPED["subjects"]["abacus"]}},
            ["finetuned.other", f"finetune makes {TUNED}"],
        ),
        (
            {"finetuned": {TUNED: {"source": "data/models/x"}}},
            [f"finetuned.{TUNED}.source = 'data/models/x'", f"'data/models/{TUNED}'"],
        ),
        (
            {"finetune": {TUNED: {"before": "nobody"}}},
            [f"finetune.{TUNED}.before is 'nobody'", "abacus"],
        ),
        (
            {"finetune": {TUNED: {"before": "planted"}}},
            [f"finetune.{TUNED}.source", "is not that of planted"],
        ),
        ({"finetuned": {TUNED: {"bos": False}}}, [f"finetuned.{TUNED}.bos"]),
        *(
            (
                {name: dict.fromkeys(SHIPPED[name]) for name in sections},
                [f"{sections[0]} has no entry", "leave our own models in"],
            )
            for sections in (("train",), ("trajectory",), ("finetune", "finetuned"))
        ),
        ({"subjects": {"planted": None}}, ["subjects lacks planted"]),
        (
            {
                "trajectory": {
                    "planted": {"source": "data/models/planted", "step": 1, "last": "other"}
                }
            },
            ["trajectory.planted", "its last"],
        ),
        (
            {"trajectory": {"other": {"source": "x", "step": 1, "last": "abacus"}}},
            ["trajectory.other", "subject or a checkpoint"],
        ),
        (
            {"trajectory": {"abacus": {"source": "x"}}},
            ["trajectory.abacus.source = 'x'", "step-06500"],
        ),
        (
            {"trajectory": {"abacus": {"step": -1}}},
            ["trajectory.abacus.step", "-1", "greater than or equal to 0"],
        ),
        (
            {"digits": {"m": digits("none", "abacus", "abacus")}},
            ["digits.m", "'none'", "subjects abacus"],
        ),
        (
            {"digits": {"m": digits("abacus", "abacus", "abacus")}},
            ["digits.m: abacus", "answer_token None", "for 0"],
        ),
        (
            {"digits": {"m": digits(FIRST, FIRST, FIRST)}},
            [f"digits.m: {FIRST}", "answer_token 0", "for 1"],
        ),
        (
            {"digits": {"m": digits(FIRST, SECOND, FIRST)}},
            [f"digits.m: {FIRST}", "answer_token 0", "for 2"],
        ),
        (
            {"digits": {"m": digits(FIRST, SECOND, SECOND, source="x")}},
            ["digits.m.source is 'x'", f"that of {FIRST} is 'data/models/abacus-digits/"],
        ),
        ({"digits": {"m": {"first": "abacus"}}}, ["digits.m.second"]),
        (
            {"unit_mediation": {"single_units": ["abacus"]}},
            ["unit_mediation.single_units", "['abacus']", "valid boolean"],
        ),
        (
            {"sizes": {"abacus": {"single_heads": "no"}}},
            ["sizes.abacus.single_heads", "'no'", "valid boolean"],
        ),
        (
            {"sizes": {"abacus": {"sampled_neurons": -1}}},
            ["sizes.abacus.sampled_neurons", "-1", "greater than or equal to 0"],
        ),
        (
            {"sizes": {"abacus": {"random_head_circuits": -1}}},
            ["sizes.abacus.random_head_circuits", "-1", "greater than or equal to 0"],
        ),
        (
            {"neuron_interventions": {"sampled_neurons": -1}},
            ["neuron_interventions.sampled_neurons", "-1", "greater than or equal to 0"],
        ),
        (
            {"attribution_recall": {"normal": 0}},
            ["attribution_recall.normal", "0", "greater than 0"],
        ),
        (
            {"unit_mediation": {"mediated_pairs": 0}},
            ["unit_mediation.mediated_pairs", "0", "greater than or equal to 1"],
        ),
        ({"neuron_overlap": {"overlap_ks": []}}, ["neuron_overlap.overlap_ks", "at least 1 item"]),
        ({"overlap_figures": {"level": 1}}, ["overlap_figures.level", "1", "less than 1"]),
    ],
)
def test_a_wrong_value_is_named(change: dict, words: list[str]):
    with pytest.raises(sections.ParamsError) as error:
        sections.check(Params, alike(merged(SHIPPED, change), change))
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value)) < 1000


def alike(whole: dict, change: dict) -> dict:
    """Repeat a change of an entry in the sections that YAML merges from it.

    So the entry itself is refused, not the difference between the sections.
    """
    entry = change.get("subjects", {}).get("abacus", {})
    if not entry.keys() & {"patched_neurons", "runs"}:
        return whole
    changed_entry = {"abacus": whole["subjects"]["abacus"]}
    merged_sections = ("with_pairs", "with_mediation", "known", "with_activations", "with_figures")
    return whole | {name: whole[name] | changed_entry for name in merged_sections}


ODD = [
    None,
    *(True, False),
    *(-1, 0, 1, 2, 7, 10**9, 10**22),
    *(-0.5, 0.0, 0.5, 1.0, 1.5, 1e300, float("inf"), float("nan")),
    *("", " ", "x", "add", "{", "{op1}", "\0", "é", "../x", "x" * 1000, "; touch x"),
    *([], [0], [1, 1], [0.5, 0.5], ["add"], ["add", "add"], [[]], [None]),
    *({}, {"x": 1}, {"add": 1}, {7: 7}),
    *(date(2024, 5, 1), b"x", {1, 2}),
]


def places(raw: Any) -> list[tuple]:
    """Return the path of every value of the settings, including sections and lists."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(raw, dict):
        items = raw.items()
    elif isinstance(raw, list):
        items = enumerate(raw)
    paths: list[tuple] = [] if isinstance(raw, dict) else [()]
    for key, value in items:
        paths += [(key, *path) for path in places(value)]
    return paths


def changed(raw: Any, path: tuple, value: Any) -> Any:
    """Return settings with another value at a path."""
    if not path:
        return value
    copy = raw.copy()
    copy[path[0]] = changed(raw[path[0]], path[1:], value)
    return copy


@given(path=sampled_from(places(SHIPPED)), value=sampled_from(ODD), cut=integers(0, 2))
@settings(max_examples=200, deadline=None)
def test_any_change_is_allowed_or_refused_in_a_sentence(path: tuple, value: Any, cut: int):
    path = path[: max(1, len(path) - cut)]
    message = ""
    try:
        sections.check(Params, changed(SHIPPED, path, value))
    except sections.ParamsError as error:
        message = str(error)
    assert not message or "holds what is not allowed" in message
    assert len(message) < 20_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"subjects": {"abacus": {"operators": ["add", "add"]}}},
            "params.yaml lists a value twice: subjects.abacus.operators = 'add'",
        ),
        (
            {"label_calibration": {"levels": [0.05, 1.0, 1.0]}},
            r"stages/heuristics/params.yaml .* label_calibration.levels = 1.0",
        ),
        (
            {"heuristics": {"grids": {"paper": {"moduli": [2, 3, 2]}}}},
            r"heuristics.grids.paper.moduli = 2",
        ),
        (
            {"smallest_circuits": {"targets": [0.5, 0.5]}},
            r"stages/circuit/params.yaml .* smallest_circuits.targets = 0.5",
        ),
    ],
)
def test_a_value_that_a_list_repeats_is_named(
    change: dict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    write_settings(tmp_path, with_changes(change))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sections.ParamsError, match=message):
        checked.main()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: {}\nruns: {}\n", r"params.yaml, line 2: .*duplicate key \"runs\""),
        ("runs:\n  a: 1\n  b: 2\n  a: 3\n", r"params.yaml, line 4: .*duplicate key \"a\""),
        ("runs: [1\n", r"params.yaml, line 2: "),
        ("a: *nobody\n", r"params.yaml, line 1: found undefined alias"),
        ("- runs\n", r"params.yaml holds list instead of sections"),
        ("runs\n", r"params.yaml holds str instead of sections"),
    ],
)
def test_a_file_that_is_not_yaml_or_repeats_a_key_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sections.ParamsError, match=message):
        sections.read()


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "a: 010\nb: 1e3\nc: 0x10\nd: on\n"
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert sections.read() == {"a": 10, "b": 1000.0, "c": 16, "d": "on"}
    assert sections.read() == parse_yaml(text, "params.yaml")


def test_a_missing_key_is_named():
    with pytest.raises(sections.ParamsError, match=r"cells\.seed is missing"):
        sections.check(Params, merged(SHIPPED, {"cells": {"seed": None}}))


def test_an_unknown_subject_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(sections.ParamsError, match=r"unknown subject 'llama'.*abacus"):
        Subject.named("llama")


def test_a_finetuned_subject_has_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert Subject.named(TUNED).settings.source == f"data/models/{TUNED}"


def test_a_stage_run_by_hand_names_what_is_wrong(micro: Path):
    done = run_in(micro, "python", "-m", "stages.store.dump", "llama", check=False)
    assert done.returncode == 1
    subjects = "the subjects abacus, planted; the checkpoints abacus-step-00100"
    assert done.stderr.strip() == (
        f"unknown subject 'llama'; params.yaml has {subjects}; the finetuned abacus-three-operands"
    )


def test_a_layer_that_the_model_lacks_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    settings = Subject.named("abacus").settings.model_copy(update={"layers": [0, 7]})
    with pytest.raises(sections.ParamsError, match=r"layer 7.*0\.\.2"):
        settings.kept_layers(3)


def test_dvc_repro_stops_at_a_wrong_value_with_nothing_written(tmp_path: Path):
    folder = copy_project(tmp_path, {"dump": {"store_dtype": "int8"}})
    done = run_in(folder, "dvc", "repro", check=False)
    assert done.returncode != 0
    assert "dump.store_dtype = 'int8'" in done.stdout + done.stderr
    assert not (folder / "data").exists() or not any((folder / "data").glob("**/*.parquet"))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_key_is_commented(file: Path):
    users_own = {"<<", *SHIPPED["with_mediation"], *SHIPPED["digits"]}  # names of models
    for line in (ROOT / file).read_text().splitlines():
        match = re.match(r"  ([^ #:-][^:]*):.", line)  # a key of a section with its value
        if match and match[1] not in users_own:
            assert "#" in line, f"{match[1]} has no comment"
