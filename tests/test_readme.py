"""Every command and query of the READMEs works.

test_starter.py compares what the queries print with what the READMEs show.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from stages.lib.core.tables import write_table
from stages.lib.core.vocabulary import CHAPTERS
from tests import made
from tests.conftest import bag_in, run_in
from tests.micro import ROOT
from tests.neurons import test_digit_circuits

README = (ROOT / "README.md").read_text()
ROOMS = (*CHAPTERS, "explorer")  # the explorer has no stages
READMES = [ROOT / "README.md", *(ROOT / "stages" / room / "README.md" for room in ROOMS)]
PAGES = sorted({*READMES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
# commands, and what they print if it follows
BLOCK = re.compile(r"```sh\n(.*?)```(?:\n```\n(.*?)```)?", re.DOTALL)
COMMANDS: list[tuple[str, str]] = []  # (file, command)
QUERIES: list[tuple[str, list[str], str]] = []  # (file, arguments of bag, what it prints)
for file in filter(Path.exists, READMES):
    name = str(file.relative_to(ROOT))
    for block, shown in BLOCK.findall(file.read_text()):
        if re.match("bag [\"']", block):
            QUERIES.append((name, shlex.split(block)[1:], shown))
        lines = [line.split("  #")[0].strip() for line in block.splitlines()]
        COMMANDS += [(name, line) for line in lines if line]
REPRO = [item for item in COMMANDS if re.match(r"(cd \S+ && )?dvc repro (?!-)", item[1])]
OTHERS: list[str] = []
for command in sorted({command for _, command in {*COMMANDS} - {*REPRO}}):
    if not command.startswith("bag ") or command.startswith(
        ("bag check", "bag add", "bag explore", "bag try", "bag new")
    ):
        OTHERS.append(command)
RUN_BY = {  # command -> the test or script that runs it, if it is not tests/test_remotes.py
    "make": ("tests/test_pipeline.py", "*MAKE, target"),
    "make quick": ("tests/test_make.py", '("quick",)'),
    "make test": (".ci/run", "make --no-print-directory test"),
    "make lint": (".ci/run", "make --no-print-directory lint"),
    "bag check models/mine": ("tests/store/test_check.py", '"check", "models/mine"'),
    "bag check models/mine.gguf": (
        "tests/subjects/test_gguf.py",
        'output(capsys, "models/mine.gguf"',
    ),
    "bag add mine models/mine": (
        "tests/store/test_check.py",
        '"bag", "add", "mine", "models/mine"',
    ),
    "bag explore": ("tests/explorer/test_app.py", "from stages.explorer.explore import main"),
    'bag try "op1 % 2 = 0 and op2 % 2 = 0"': (
        "tests/heuristics/test_try.py",
        'BOTH_EVEN = "op1 % 2 = 0 and op2 % 2 = 0"',
    ),
    "bag new experiment mine": ("tests/circuit/test_new.py", '["experiment", "mine"'),
    "make study": ("tests/test_pipeline.py", "*MAKE, target"),
}


def test_there_are_commands_and_queries():
    assert len(OTHERS) >= 6
    assert len(REPRO) >= 2
    assert len(QUERIES) >= 2


@pytest.fixture(scope="module")
def tables(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro project's, and one that it lacks, as no subject of it writes digits."""
    folder = Path(
        shutil.copytree(
            micro / "data", tmp_path_factory.mktemp("readme") / "data", copy_function=os.link
        )
    )
    circuits = test_digit_circuits.ask_digits(
        test_digit_circuits.of_digits(np.ones((3, made.LAYERS, made.NEURONS)))
    )
    write_table(circuits, folder / "neurons/digit_circuits/made.parquet")
    return folder


@pytest.mark.parametrize(("place", "query", "shown"), QUERIES)
def test_a_query_runs_and_has_the_columns_that_are_shown(
    micro: Path,
    tables: Path,
    place: str,
    query: list[str],
    shown: str,
):
    arguments = ("--data", str(tables), "--csv", *query)
    is_first = query == QUERIES[0][1]  # in a process of its own
    done = run_in(micro, "bag", *arguments) if is_first else bag_in(micro, *arguments)
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    if "│" in shown:
        columns = shown.splitlines()[1].split("│")[1:-1]
        assert list(map(str.strip, columns)) == header.split(",")


def target(command: str) -> str:
    """Return what `dvc repro` runs, as it is called in the root."""
    folder, stage = re.fullmatch(r"(?:cd (\S+) && )?dvc repro (\S+)", command).groups()
    return f"{folder}/dvc.yaml:{stage}" if folder else stage


def test_every_stage_is_one_that_repro_knows(micro: Path):
    """Run all in one command, as DVC takes seconds to start, where nothing is left to do."""
    targets = sorted({target(command) for _, command in REPRO})
    assert len(targets) >= len(CHAPTERS) - 1
    assert "up to date" in run_in(micro, "dvc", "repro", *targets).stdout


def test_a_stage_is_run_where_it_says(micro: Path):
    [command] = [
        command for place, command in REPRO if place == "README.md" and command.startswith("cd ")
    ]
    waiting = command.replace("dvc repro", "dvc --wait-for-lock repro")
    printed = run_in(micro, "bash", "-c", waiting).stdout
    assert "up to date" in printed


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_command_is_run_by_a_test(command: str):
    words = command.split()
    called = '"' + '", "'.join(words) + '"'
    if words[0] == "make" and len(words) > 1:
        called = f'*MAKE, "{words[1]}"'
    file, text = RUN_BY.get(command, ("tests/test_remotes.py", called))
    assert text in (ROOT / file).read_text(), f"{command} is run by no test"


def test_the_notebook_example_runs(micro: Path, tmp_path: Path):
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(code + "\nassert len(frame) == 8, frame\n")
    run_in(micro, "python", str(tmp_path / "example.py"))


def test_the_readme_fits_and_its_tree_has_every_chapter_in_order():
    assert len(README.splitlines()) <= 200
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    [tree] = [block for block in blocks if block.startswith("stages/")]
    assert len(tree.splitlines()) <= 15
    assert [line.split()[0] for line in tree.splitlines()] == [
        *(f"stages/{room}" for room in ROOMS),
        "stages/lib",
    ]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_page_points_to_exists(file: Path):
    if file.parent != ROOT and file.parent.name in ROOMS:
        assert file.read_text().lower().startswith(f"# {file.parent.name}: ")
    for place in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
        assert (file.parent / place).exists(), place
