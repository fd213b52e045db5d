"""Run branches of the pipeline side by side: python -m stages.lib.console.branches default|study

DVC runs one stage at a time, and after each it updates a lock, a second of work for one core. Two
`dvc repro` may run at the same time if they have no stage in common (documentation of `dvc repro`,
"Parallel stage execution"). So each branch is a `dvc repro` of its own, with its share of the
workers. A branch names only its own stages, because DVC also locks the outputs of stages that it
merely checks. The outputs have the same bytes.

default: chapters of the default model, and the synthetic model, beside each other.
study: the other models under study, and the checkpoints, beside each other.

Branches whose outputs all exist are left to the `dvc repro` that follows, which runs what changed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from stages.lib.console.pipeline import VISITED, Stage, in_order, plan
from stages.lib.core import environment
from stages.lib.core.settings import read

WARM = (sys.executable, "-m", "stages.warm", "dvc", "--wait-for-lock", "repro")

Targets = list[str]  # what a `dvc repro` is called with


@dataclass(frozen=True)
class Phase:
    """Branches that run side by side, and what runs before them because several need it."""

    before: Targets
    branches: list[Targets]


@dataclass
class Branch:
    """What one `dvc repro` runs.

    stages: those of the targets by DVC's names, in an order in which they can run, without those
    before all branches. If empty, `dvc repro` runs the targets and all that they need.
    """

    targets: Targets
    stages: dict[str, Stage] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Return what `dvc repro` is called with."""
        return ["--single-item", *self.stages] if self.stages else self.targets

    def lacks_outputs(self) -> bool:
        """Return whether an output of a stage is missing."""
        paths = [path for stage in self.stages.values() for path in stage.writes]
        return not all(map(os.path.exists, paths))


def main(name: str) -> None:
    """Run the phases of that name. Exits with status 1 if a branch fails."""
    if environment.workers() == 1:
        return  # one branch at a time takes no less time than all stages in a row
    for phase in PHASES[name](read()):
        waiting = [branch for branch in separate(phase) if branch.lacks_outputs()]
        if len(waiting) > 1:
            run([Branch(phase.before)])
            run(waiting)


def _default(settings: dict) -> list[Phase]:
    name = settings["default"]

    def targets(chapter: str, *stages: str) -> Targets:
        return [_target(chapter, stage, name) for stage in stages]

    before_labels = Phase(
        [
            _target("heuristics", "heuristics"),
            *targets("store", "architecture", "dump", "task_predictions"),
            *targets("circuit", "late_layers", "component_interventions"),
        ],
        [
            [
                _target("heuristics", "label_calibration"),
                _target("heuristics", "discovery_calibration"),
                *targets("heuristics", "discovered", "matches", "spectra"),
            ],
            [
                *targets("circuit", "circuit_figures"),
                *targets("neurons", "neuron_figures", "vote_figures"),
                *targets("mediation", "mediation_effects"),
            ],
        ],
    )
    after_labels = Phase(
        [
            _target("subjects", "origins"),
            *targets("heuristics", "labels"),
            *targets("neurons", "neuron_effects"),
        ],
        [
            targets("bag", "causal_figures", "steering"),
            [
                *targets("heuristics", "heuristic_figures", "discovered_figure", "label_votes"),
                *targets("theories", "theory_figures"),
                *targets("mediation", "mediation_figures"),
            ],
        ],
    )
    return [before_labels, after_labels]


def _study(settings: dict) -> list[Phase]:
    others = [name for name in settings["subjects"] if name != settings["default"]]
    branches = [[_target("report", "report_data", name)] for name in others]
    for name in settings["checkpoints"]:
        trajectory = _target("trajectory", "trajectory", name)
        branches.append([trajectory, _target("mediation", "trajectory_mediation", name)])
    for name in settings["finetuned"]:
        branches.append([_target("mediation", "mediation_by_pair", name)])
    last = sorted({entry["last"] for entry in settings["trajectory"].values()})
    shared = [_target("trajectory", "trajectory_interventions", name) for name in last]
    return [Phase(["dvc.yaml", *shared], branches)]


PHASES: dict[str, Callable[[dict], list[Phase]]] = {"default": _default, "study": _study}


def _target(chapter: str, stage: str, model: str = "") -> str:
    return f"stages/{chapter}/dvc.yaml:{stage}" + (model and f"@{model}")


def separate(phase: Phase) -> list[Branch]:
    """Return the branches of a phase; those that share a stage become one."""
    before = plan(phase.before, False)[0] if phase.before else {}
    branches: list[Branch] = []
    for targets in phase.branches:
        stages, parents = plan(targets, False)
        inner = {name: parents[name] & stages.keys() for name in stages}
        own = {name: stages[name] for name in in_order(stages, inner) if name not in before}
        joined, others = Branch(targets, own), []
        for branch in branches:
            if branch.stages.keys() & joined.stages.keys():
                joined = Branch(branch.targets + joined.targets, branch.stages | joined.stages)
            else:
                others.append(branch)
        branches = [*others, joined]
    return branches


def run(branches: list[Branch]) -> None:
    """Run branches, as many at a time as there are workers, which they share.

    Exits with status 1 if one fails, after the others have ended. Ctrl-C ends them all.
    """
    workers = environment.workers()
    at_once = min(workers, len(branches))
    threads = str(workers // at_once)
    # more threads than cores wait for each other: some stages then take ten times as long
    share = {**os.environ, environment.WORKERS: threads, "OMP_NUM_THREADS": threads}
    started: list[subprocess.Popen] = []

    def reproduce(branch: Branch) -> int:
        command = [*WARM, *branch.arguments]
        if at_once == 1:
            process = subprocess.Popen(command, env=share)
            started.append(process)
            return process.wait()
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=share, **streams)  # type: ignore[call-overload]
        started.append(process)
        number, title = 0, branch.targets[-1].rpartition(":")[2]
        for line in process.stdout:  # whole lines, so that branches do not mix theirs
            visited = VISITED.match(line.decode("utf-8", "replace"))
            if line.strip():
                os.write(1, line)
            if visited:
                number += 1
                if visited["running"] != "S":
                    text = f"stage {number} of {len(branch.stages)}, up to {title}\n"
                    os.write(2, text.encode())
        return process.wait()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    pool = ThreadPoolExecutor(at_once)
    try:
        failed = any(list(pool.map(reproduce, branches)))
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            if not os.isatty(0):  # in a terminal, Ctrl-C reaches all of them
                process.send_signal(signal.SIGINT)
        sys.exit(128 + signal.SIGINT)
    if failed:
        sys.exit("make: a branch of the pipeline has failed; its message is above")


if __name__ == "__main__":
    main(sys.argv[1])
