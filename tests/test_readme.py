"""Every command and every query of the READMEs works, and what they show is what there is."""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from stages.lib.core.tables import write_table
from stages.lib.core.words import CHAPTERS
from tests import made
from tests.conftest import bag_in, run_in
from tests.micro import ROOT
from tests.neurons import test_digit_circuits

README = (ROOT / "README.md").read_text()
ROOMS = (*CHAPTERS, "explorer")  # the explorer looks at what chapters wrote, and has no stages
READMES = [ROOT / "README.md", *(ROOT / "stages" / room / "README.md" for room in ROOMS)]
PAGES = sorted({*READMES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
BLOCK = re.compile(r"```sh\n(.*?)```(?:\n```\n(.*?)```)?", re.DOTALL)  # of commands, and what they print if it follows
FOUND = [(str(file.relative_to(ROOT)), *blocks) for file in READMES if file.exists() for blocks in BLOCK.findall(file.read_text())]
COMMANDS = [(place, line.split("  #")[0].strip()) for place, block, _ in FOUND for line in block.splitlines() if line.strip()]
QUERIES = [(place, shlex.split(block)[1:], shown) for place, block, shown in FOUND if re.match("bag [\"']", block)]
REPRO = [(place, command) for place, command in COMMANDS if re.match(r"(cd \S+ && )?dvc repro (?!-)", command)]
OTHERS = [c for place, c in COMMANDS if not c.startswith("bag ") and (place, c) not in REPRO]
OTHERS += [c for _, c in COMMANDS if c.startswith(("bag check", "bag add", "bag explore"))]
RUN_BY = {  # what sets up, shares or takes long, and the test or script that runs it
    "make": ("tests/test_pipeline.py", "*MAKE, target"),
    "make test": (".ci/run", "make --no-print-directory test"),
    "make lint": (".ci/run", "make --no-print-directory lint"),
    "bag check models/mine": ("tests/store/test_check.py", '"bag", "check", "models/mine"'),
    "bag check models/mine.gguf": (
        "tests/subjects/test_gguf.py",
        'said(capsys, "models/mine.gguf"',
    ),
    "bag add mine models/mine": (
        "tests/store/test_check.py",
        '"bag", "add", "mine", "models/mine"',
    ),
    "bag explore": ("tests/explorer/test_app.py", "from stages.explorer.explore import main"),
    "dvc repro -R stages/store": ("tests/test_readme.py", '"repro", "-R", "stages/store"'),
    "make study": ("tests/test_pipeline.py", "*MAKE, target"),
}


def test_there_are_commands_and_queries():
    assert len(OTHERS) >= 6
    assert len(REPRO) >= 2
    assert len(QUERIES) >= 2


@pytest.fixture(scope="module")
def tables(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro project's, and one that it lacks, as no subject of it writes digits."""
    folder = Path(shutil.copytree(micro / "data", tmp_path_factory.mktemp("readme") / "data", copy_function=os.link))
    circuits = test_digit_circuits.ask_digits(test_digit_circuits.of_digits(np.ones((3, made.LAYERS, made.NEURONS))))
    write_table(circuits, folder / "neurons/digit_circuits/made.parquet")
    return folder


@pytest.mark.parametrize(("place", "query", "shown"), QUERIES)
def test_a_query_runs_and_has_the_columns_that_are_shown(micro: Path, tables: Path, place: str, query: list[str], shown: str):
    asked = ("--data", str(tables), "--csv", *query)
    done = run_in(micro, "bag", *asked) if query == QUERIES[0][1] else bag_in(micro, *asked)
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    if "│" in shown:
        assert [cell.strip() for cell in shown.splitlines()[1].split("│")[1:-1]] == header.split(",")


def target(command: str) -> str:
    """What `dvc repro` runs, as it is called in the root."""
    folder, stage = re.fullmatch(r"(?:cd (\S+) && )?dvc repro (\S+)", command).groups()
    return f"{folder}/dvc.yaml:{stage}" if folder else stage


def test_every_stage_is_one_that_repro_knows(micro: Path):
    """All in one command, as DVC takes seconds to start, on a project where nothing is left to do."""
    targets = sorted({target(command) for _, command in REPRO})
    assert len(targets) >= len(CHAPTERS) - 1
    assert "up to date" in run_in(micro, "dvc", "repro", *targets).stdout
    assert "up to date" in run_in(micro, "dvc", "repro", "-R", "stages/store").stdout


def test_a_stage_is_run_where_it_says(micro: Path):
    [command] = [command for place, command in REPRO if place == "README.md" and command.startswith("cd ")]
    printed = run_in(micro, "bash", "-c", command.replace("dvc repro", "dvc --wait-for-lock repro")).stdout
    assert "up to date" in printed


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_command_is_run_by_a_test(command: str):
    words = command.split()
    called = f'*MAKE, "{words[1]}"' if words[0] == "make" and len(words) > 1 else '"' + '", "'.join(words) + '"'
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
    assert [line.split()[0] for line in tree.splitlines()] == [*(f"stages/{room}" for room in ROOMS), "stages/lib"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_page_points_to_exists(file: Path):
    if file.parent != ROOT and file.parent.name in ROOMS:
        assert file.read_text().lower().startswith(f"# {file.parent.name}: ")
    for place in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
        assert (file.parent / place).exists(), place
