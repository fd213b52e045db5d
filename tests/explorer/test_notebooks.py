"""Every code cell of the notebooks runs, here on the micro project."""

import runpy
import shlex
import sys
from contextlib import chdir
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages import ablate, neuron_map
from stages.explorer.project import ExplorerError
from stages.lib.core.settings import read
from tests import declared
from tests.conftest import bag_in
from tests.micro import ROOT, SETTINGS, changed, merged, write_settings
from tests.notebooks import Shell, run


def shell_in(project: Path) -> Shell:
    """Return a shell for commands of the notebooks, which run in this process.

    New processes would spend seconds on imports.
    """

    def shell(command: str) -> str:
        cd, up, then, program, *arguments = shlex.split(command)
        assert (cd, up, then) == ("cd", "..", "&&")
        if program == "bag":
            done = bag_in(project, *arguments)
            assert done.returncode == 0, done.stderr
            if arguments[0] == "add":
                derive(project, arguments[1])
            return done.stdout
        assert (program, *arguments[:2]) == ("dvc", "repro", "-q")
        with chdir(project):
            for target in arguments[2:]:
                make(declared.key(target), target.partition("@")[2])
        return ""

    return shell


def derive(project: Path, name: str) -> None:
    """Write a model's entry into the sections that follow from it.

    In the shipped params.yaml, YAML's anchors do so.
    """
    with chdir(project):
        added = {"subjects": {name: read()["subjects"][name]}}
    write_settings(project, changed(merged(SETTINGS, added)))


def make(stage: str, subject: str) -> None:
    """Run a stage, and before it the stages that write what it needs and what is missing."""
    for path in declared.read(stage):
        if path.startswith("${") or Path(path.replace("${key}", subject)).exists():
            continue
        for other in declared.STAGES:
            if {path, str(Path(path).parent)} & {*declared.written(other)}:
                make(other, subject)
    _, _, module, *arguments = declared.STAGES[stage]["cmd"].replace("${key}", subject).split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *arguments])
        runpy.run_module(module, run_name="__main__")


def test_the_quickstart_runs(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(micro_copy / "examples")  # a copy, as it runs a stage
    _, variables = run(ROOT / "examples/quickstart.ipynb", shell_in(micro_copy))
    runs = variables["runs"]
    assert runs["prompt"].unique(maintain_order=True).to_list() == variables["prompts"]
    clean = runs.filter(ablated="nothing")
    assert clean["correct"].all()
    patched = runs.filter(ablated="the selected neurons")
    assert (clean["logit"] != patched["logit"]).all()
    listed = np.array(variables["neurons"])  # rows of an array are neurons, too
    assert ablate("abacus", variables["prompts"], listed).equals(runs)
    with pytest.raises(ExplorerError, match="layer 9"):
        neuron_map("abacus", 9, 0)
    with pytest.raises(ExplorerError, match="it must be mean or zero"):
        ablate("abacus", ["1+1"], [(0, 1)], "median")
    with pytest.raises(ExplorerError, match="it must be a list, such as"):
        ablate("abacus", "1+1", [(0, 1)])


@pytest.mark.parametrize("neurons", [[], (2, 489)])
def test_neurons_that_are_not_a_list_of_pairs_are_refused(neurons: list | tuple):
    """Without neurons, the table would silently lack the ablation."""
    with pytest.raises(ExplorerError, match=r"neurons is .*; it must be a list of layers"):
        ablate("abacus", ["1+1"], neurons)


def test_an_own_model_is_added_and_drawn(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(micro_copy / "examples")
    notebook, variables = run(
        ROOT / "examples/own_model.ipynb", shell_in(micro_copy), **{"step-03500": "step-00100"}
    )
    assert isinstance(variables["varying"], pl.DataFrame)
    last = notebook["cells"][-2]["outputs"]
    assert "image/png" in last[0]["data"]
    with chdir(micro_copy):
        assert read()["subjects"]["mine"]["source"] == "data/models/abacus/step-00100"
