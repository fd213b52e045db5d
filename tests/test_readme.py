"""Every command of the README works."""

import re
from pathlib import Path

import pytest

from tests.conftest import run_in
from tests.micro import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
CI = (ROOT / ".ci/run").read_text()
REMOTES = (ROOT / "tests/test_remotes.py").read_text()


def test_there_are_commands():
    assert len(COMMANDS) >= 9


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bag ")])
def test_a_query_of_the_readme_runs(micro: Path, command: str):
    query = re.fullmatch(r'bag "(.*)"', command)[1]
    assert run_in(micro, "bag", query).stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("bag ")])
def test_every_other_command_is_run_by_a_test(command: str):
    """`make` and `make test` are what .ci/run does (with the micro settings); sharing is test_remotes."""
    words = command.split()
    if words[0] == "make":
        targets = {"": "dvc repro", "test": "make --no-print-directory test"}
        target = words[1] if len(words) > 1 else ""
        known = targets.get(target, f'*MAKE, "{target}"')
        assert known in CI + REMOTES, f"{command} is run by no test"
    else:
        quoted = '", "'.join(words)
        assert f'"{quoted}"' in REMOTES, f"{command} is run by no test"


def test_the_notebook_example_runs(micro: Path, tmp_path: Path):
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(code + "\nassert len(frame) == 8, frame\n")
    run_in(micro, "python", str(tmp_path / "example.py"))


def test_the_file_tree_names_every_file():
    tree = README[README.index("## What is where") :]
    for path in [*(ROOT / "stages").glob("*.*"), *(ROOT / "stages/lib").glob("*.py")]:
        if path.suffix in {".py", ".sql"} and path.stem != "__init__":
            assert path.name in tree, f"{path.name} is not in the README's file tree"


def test_the_readmes_figure_exists():
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README):
        assert (ROOT / picture).exists()
