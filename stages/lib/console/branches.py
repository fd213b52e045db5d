"""Run the pipeline, side by side where it branches: python -m stages.lib.console.branches default

DVC runs one stage at a time, and after each it updates a lock, a second of work for one core. Two
`dvc repro` may run at the same time if they have no stage in common (documentation of `dvc repro`,
"Parallel stage execution"). So each branch is a `dvc repro` of its own, with its share of the
workers. A branch names only its own stages, because DVC also locks the outputs of stages that it
merely checks. The outputs have the same bytes.

default: chapters of the default model, and the synthetic model, beside each other; then `dvc
repro`.
study: the same, and the other models under study, and the checkpoints, beside each other; then
`dvc repro --all-pipelines`.

Branches whose outputs all exist are left to the last `dvc repro`, which runs what changed. All
these commands have one count of stages, and record the stages' seconds: see pipeline.py. One
process has loaded the libraries for the stages of all commands: stages.warm.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from stages import warm
from stages.lib.console.pipeline import Progress, Stage, in_order, needed, plan
from stages.lib.core import environment
from stages.lib.core.settings import read

REPRO = (sys.executable, "-P", str(warm.QUICK_DVC), "--wait-for-lock", "repro")
SECONDS_BETWEEN_LOOKS = 0.2  # for signals, and to report progress

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

    def without(self, ran: set[str]) -> "Branch":
        """Return this branch without stages that ran."""
        own = {name: stage for name, stage in self.stages.items() if name not in ran}
        return Branch(self.targets, own)

    def lacks_outputs(self) -> bool:
        """Return whether an output of a stage is missing."""
        paths = [path for stage in self.stages.values() for path in stage.writes]
        return not all(map(os.path.exists, paths))


def main(name: str) -> None:
    """Run the pipeline for the default model, or all of it, below one stages.warm."""
    # more threads than cores wait for each other: some stages then take ten times as long
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    code = f"from stages.lib.console import branches; branches.run_named({name!r})"
    command = [sys.executable, "-m", "stages.warm", sys.executable, "-c", code]
    os.execv(command[0], command)


def run_named(name: str) -> None:
    """Run the pipeline for the default model, or all of it. See run_all."""
    run_all(PHASES[name](read()), LAST[name])


def run_all(phases: list[Phase], last: Targets) -> None:
    """Run phases, then the last `dvc repro`. Exits with status 1 if a command fails."""
    rounds = [[Branch(last)]]
    workers = environment.workers()
    if workers > 1:  # else branches take no less time than all stages in a row
        rounds = [*rounds_of(phases), *rounds]
    stages = [[branch.stages for branch in branches] for branches in rounds]
    progress = Progress(say, [], "--all-pipelines" in last, stages, workers)
    for branches in rounds:
        run(branches, progress)


def rounds_of(phases: list[Phase]) -> list[list[Branch]]:
    """Return what runs before the last command, round after round.

    A phase with less than two branches that lack outputs is left to the last command. What an
    earlier round runs does not run again.
    """
    rounds: list[list[Branch]] = []
    ran: set[str] = set()
    for phase in phases:
        waiting = [branch.without(ran) for branch in separate(phase)]
        waiting = [branch for branch in waiting if branch.lacks_outputs()]
        if len(waiting) > 1:
            before = needed(phase.before, *plan([], True))
            if not before.keys() <= ran:
                rounds.append([Branch(phase.before)])
            rounds.append(waiting)
            ran.update(before, *(branch.stages for branch in waiting))
    return rounds


def say(text: str) -> None:
    """Print a line about the progress."""
    print(text, file=sys.stderr, flush=True)


def _default(settings: dict) -> list[Phase]:
    name = settings["default"]

    def targets(chapter: str, *stages: str) -> Targets:
        return [_target(chapter, stage, name) for stage in stages]

    activations = [
        *targets("store", "architecture", "dump", "neuron_variances", "task_predictions"),
        *targets("circuit", "late_layers", "component_interventions"),
    ]
    heuristics = _target("heuristics", "heuristics")
    dumps = Phase(
        [_target("corpus", "facts"), _target("corpus", "tasks")],
        [activations, [heuristics, _target("store", "dump", "planted")]],
    )
    before_labels = Phase(
        [*activations, heuristics],
        [
            [
                _target("heuristics", "label_calibration"),
                _target("heuristics", "discovery_calibration"),
                *targets("heuristics", "discovered", "labels", "spectra"),
                *targets("claims", "fault_scores"),
                *targets("store", "figures", "task_accuracy"),
            ],
            [
                *targets("circuit", "circuit_figures"),
                *targets("neurons", "neuron_effects", "neuron_figures", "vote_figures"),
                *targets("mediation", "mediation_effects"),
                *targets("theories", "helix_fits"),
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
            [
                *targets("bag", "causal_figures", "steering"),
                *targets("claims", "faults"),
                *targets("store", "answer_accuracy", "accuracy"),
            ],
            [
                _target("heuristics", "calibration_figure"),
                *targets("heuristics", "heuristic_figures", "discovered_figure", "label_votes"),
                *targets("theories", "theory_figures"),
                *targets("mediation", "mediation_figures"),
            ],
        ],
    )
    return [dumps, before_labels, after_labels]


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
    return [*_default(settings), Phase(["dvc.yaml", *shared], branches)]


PHASES: dict[str, Callable[[dict], list[Phase]]] = {"default": _default, "study": _study}
LAST: dict[str, Targets] = {"default": [], "study": ["--all-pipelines"]}


def _target(chapter: str, stage: str, model: str = "") -> str:
    return f"stages/{chapter}/dvc.yaml:{stage}" + (model and f"@{model}")


def separate(phase: Phase) -> list[Branch]:
    """Return the branches of a phase; those that share a stage become one."""
    every, parents = plan([], True)
    before = needed(phase.before, every, parents)
    branches: list[Branch] = []
    for targets in phase.branches:
        stages = needed(targets, every, parents)
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


def run(branches: list[Branch], progress: Progress) -> None:
    """Run branches, as many at a time as there are workers, which they share.

    Exits with status 1 if one fails, after the others have ended. Ctrl-C ends them all.
    """
    workers = environment.workers()
    at_once = min(workers, len(branches))
    # in groups of their own, Ctrl-C reaches none of them before this process
    options: dict = {"stdout": subprocess.PIPE, "process_group": 0}
    if len(branches) > 1:
        share = {environment.WORKERS: str(workers // at_once)}
        options |= {"env": os.environ | share, "stderr": subprocess.STDOUT}
    started: list[subprocess.Popen] = []
    signals: list[int] = []
    lock = Lock()  # whole lines, so that branches do not mix theirs

    def end(number: int, *_: object) -> None:
        """End all branches."""
        signals.append(number)
        for process in started:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGTERM)  # while a stage runs, DVC ignores SIGINT

    def reproduce(number: int) -> int:
        if signals:
            return 1
        process = subprocess.Popen([*REPRO, *branches[number].arguments], **options)
        started.append(process)
        if signals:  # `end` may have run before it was in the list
            process.terminate()
        assert process.stdout  # a pipe
        for line in process.stdout:
            with lock, suppress(Exception):  # a run does not depend on the report of its progress
                if line.strip():
                    os.write(1, line)
                progress.read(line.decode("utf-8", "replace"), number)
        status = process.wait()
        with lock, suppress(Exception):
            progress.end(status == 0, number)
        return status

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(reproduce, number) for number in range(len(branches))]
        # two signals at once may leave a thread asleep that waits for others without a limit
        while wait(futures, SECONDS_BETWEEN_LOOKS).not_done:
            with lock, suppress(Exception):
                progress.look()
    if signals:
        sys.exit(128 + signal.SIGINT)
    if any(future.result() for future in futures):
        sys.exit("make: `dvc repro` has failed; its message is above")


if __name__ == "__main__":
    main(sys.argv[1])
