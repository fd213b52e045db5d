"""Say how far `dvc repro` is: "stage 40 of 110, about 6 min left".

stages.warm does so for one command, and branches.py for commands that run side by side.

A line every 30 seconds says how long a stage has run. On a terminal, where most stages draw bars,
it says so of queries alone, which draw none.

DVC prints a line for each stage that it runs or skips; these lines count the stages. How many there
will be follows from the graph in dvc.yaml. The time left follows from the seconds of earlier runs,
which are in RECORD, then from what `bag add` expected of a model, in ESTIMATES, and otherwise from
TYPICAL, which Git has. Each is scaled by the pace so far.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

RECORD = Path(".dvc/tmp/stage_seconds.json")
ESTIMATES = Path(".dvc/tmp/stage_estimates.json")
TYPICAL = Path(__file__).with_name("stage_seconds.yaml")  # of each stage, whatever its model
VISITED = re.compile(
    r"(?P<running>Running s|S)tage '(?P<stage>[^']+)'(?::| didn't change| is cached)"
)
NAME = re.compile(r"\$\{([\w.]+)\}")  # of a value in dvc.yaml
MEASURED = 30.0  # seconds that stages took before, from which on their pace counts
# The slowest pace at which typical seconds count. Models that are larger by far spend their time on
# other stages than the models of TYPICAL.
SLOWEST = 4.0
QUERIES = "stages.lib.sql.stage"  # the module that runs stages of queries
SECONDS_BETWEEN_LINES = 30.0


@dataclass(frozen=True)
class Stage:
    """What a stage reads and writes, relative to the root, and its command."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    command: str = ""


@dataclass
class Running:
    """A stage that runs.

    started, last_line: seconds of the clock at its start, and at the last line about it; expected:
    the seconds that it is expected to take, None if they are not known.
    """

    stage: str
    started: float
    last_line: float
    expected: float | None = None


class Progress:
    """The progress of `dvc repro`, known from the lines that it prints.

    It may cover several commands, each with a number, that run stages of the same plan.

    say: called with a sentence when a stage starts; targets: of the command that visits all stages,
    none for the stages of the root; every: whether it runs all pipelines; rounds: one after
    another, the stages of commands that run side by side; workers: how many commands run at once;
    bars: whether stages draw bars, between which no line fits.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        targets: list[str],
        every: bool,
        rounds: Collection[Collection[Collection[str]]] = (),
        workers: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        bars: bool = False,
    ):
        self.say, self.targets, self.every, self.clock = say, targets, every, clock
        self.rounds, self.workers, self.bars = rounds, workers, bars
        self.visited: set[str] = set()
        self.ran: dict[str, float] = {}  # stage -> its seconds
        self.running: dict[int, Running] = {}  # number of a command -> its stage
        self.stages: dict[str, Stage] = {}  # which will be visited; known once one has run
        self.parents: dict[str, set[str]] = {}  # of each of these stages
        self.order: list[str] = []  # these stages, each after its parents
        self.absent: set[str] = set()  # of these stages, those that lack an output
        self.record: dict[str, float] = {}  # stage -> its seconds in an earlier run
        self.estimates: dict[str, float] = {}  # stage -> its seconds as `bag add` expects them
        self.typical: dict[str, float] = {}  # stage -> its seconds elsewhere, if they are known

    def read(self, line: str, command: int = 0) -> None:
        """Read a line that a command has printed."""
        visited = VISITED.match(line)
        if not visited:
            return
        self._end_stage(command)
        self.visited.add(visited["stage"])
        if visited["running"] != "S":
            self._start_stage(visited["stage"], command)

    def end(self, is_done: bool, command: int = 0) -> None:
        """Record the stages' seconds, that of a command's last one only if it succeeded."""
        if is_done:
            self._end_stage(command)
        self.running.pop(command, None)
        if self.ran:
            RECORD.write_text(json.dumps(_seconds(RECORD) | self.ran, indent=1), encoding="utf-8")

    def look(self) -> None:
        """Say how long stages have run of which no line has told for a while."""
        now = self.clock()
        for running in self.running.values():
            stage = self.stages.get(running.stage)
            draws = self.bars and stage and QUERIES not in stage.command
            if not draws and now - running.last_line >= SECONDS_BETWEEN_LINES:
                running.last_line = now
                elapsed, expected = now - running.started, running.expected
                line = f"{running.stage.rpartition(':')[2]}: {_spoken(elapsed)}"
                if expected and elapsed < expected:
                    line += f" of about {_spoken(expected)}"
                self.say(line)

    def _start_stage(self, stage: str, command: int) -> None:
        if not self.stages:  # a run that skips every stage needs no graph
            self.stages, self.parents = plan(self.targets, self.every)
            self.order = in_order(self.stages, self.parents)
            self.absent = set(filter(self._is_absent, self.stages))
            self.record, self.typical = _seconds(RECORD), _typical(self.stages)
            estimates = _seconds(ESTIMATES)
            self.estimates = {name: estimates[name] for name in estimates.keys() & self.stages}
        now = self.clock()
        self.running[command] = Running(stage, now, now, self._expected().get(stage))
        number, total = len(self.visited), len(self.stages)
        if stage not in self.stages or number > total:
            return  # not the graph of this command
        seconds = self._left()
        left = "" if seconds is None else f", about {_spoken(max(1, seconds))} left"
        self.say(f"stage {number} of {total}{left}")

    def _is_absent(self, stage: str) -> bool:
        return not all(map(os.path.exists, self.stages[stage].writes))

    def _end_stage(self, command: int) -> None:
        if command in self.running:
            running = self.running.pop(command)
            self.ran[running.stage] = round(self.clock() - running.started, 1)

    def _left(self) -> float | None:
        """Return the seconds left, None if nothing tells how long some stage takes."""
        expected, waiting = self._expected(), self._waiting()
        if not expected.keys() >= {*waiting}:
            return None
        seconds = {stage: expected[stage] for stage in waiting}
        for running in self.running.values():
            elapsed = self.clock() - running.started
            seconds[running.stage] = max(0.0, seconds[running.stage] - elapsed)
        left = 0.0
        for commands in self.rounds:
            sums = []  # of each command
            for stages in commands:
                sums.append(sum(seconds.pop(stage, 0.0) for stage in stages))
            left += max(*sums, sum(sums) / self.workers)
        return left + sum(seconds.values())

    def _waiting(self) -> list[str]:
        """Return the stages that run, or will run, in order.

        A stage will run if an output is missing, or if a stage before it runs though its outputs
        were there: something has changed. Missing outputs are taken to be made as they were, such
        as the prompts that our own models in Git were trained on.
        """
        running = {command.stage for command in self.running.values()}
        begun, finished = running | self.ran.keys(), self.visited - running
        changed: set[str] = set()
        waiting = []
        for stage in self.order:
            follows = not changed.isdisjoint(self.parents[stage])
            will_run = stage not in finished and (follows or stage in self.absent)
            if stage in begun or will_run:
                if follows or stage not in self.absent:
                    changed.add(stage)
                if stage not in finished:
                    waiting.append(stage)
        return waiting

    def _expected(self) -> dict[str, float]:
        """Return the seconds that each stage is expected to take, as far as they are known.

        Stages that have never run here are known once the pace of this machine and model is.
        """
        typical = {stage: self.typical[stage] for stage in self.typical.keys() - self.estimates}
        expected = {}
        pace = self._pace_of(typical) or (1.0 if self.estimates else None)
        if pace and pace <= SLOWEST:
            expected = _scaled(typical, pace)
        expected |= _scaled(self.estimates, self._pace_of(self.estimates) or 1.0)
        return expected | _scaled(self.record, _pace(self.ran, self.record) or 1.0)

    def _pace_of(self, reference: Mapping[str, float]) -> float | None:
        """Return how much longer stages take than in a reference, in this run and earlier ones."""
        return _pace(self.record | self.ran, reference)


def progress_of(command: list[str], say: Callable[[str], None]) -> Progress | None:
    """Return the progress of a command if it is a `dvc repro` whose stages it can count."""
    if [Path(command[0]).name, *command[1:2]] != ["dvc", "repro"]:
        return None
    options = [word for word in command[2:] if word.startswith("-")]
    if not {*options} <= {"--all-pipelines", "-P"}:
        return None
    targets = [word for word in command[2:] if word not in options]
    return Progress(say, targets, bool(options), bars=sys.stderr.isatty())


def _pace(seconds: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Return how much longer stages took than in a reference, None if few stages are in both."""
    shared = seconds.keys() & reference.keys()
    expected = sum(reference[stage] for stage in shared)
    return sum(seconds[stage] for stage in shared) / expected if expected > MEASURED else None


def _scaled(seconds: Mapping[str, float], pace: float) -> dict[str, float]:
    return {stage: pace * each for stage, each in seconds.items()}


def _typical(stages: Iterable[str]) -> dict[str, float]:
    """Return the seconds of stages that TYPICAL has, whatever their models."""
    known = _yaml(TYPICAL)
    names = {stage: stage.partition("@")[0] for stage in stages}
    return {stage: known[name] for stage, name in names.items() if name in known}


def _seconds(file: Path) -> dict[str, float]:
    """Return the seconds of stages in a file, none if it is absent or was cut off."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def keep_estimates(name: str, seconds: Mapping[str, float]) -> None:
    """Keep the seconds that a new model's stages are expected to take, by <chapter>/<stage>."""
    if not ESTIMATES.parent.parent.is_dir():
        return  # no project of DVC
    ESTIMATES.parent.mkdir(exist_ok=True)
    estimates = _seconds(ESTIMATES)
    for stage, each in seconds.items():
        chapter, _, stage_name = stage.partition("/")
        estimates[f"stages/{chapter}/dvc.yaml:{stage_name}@{name}"] = round(each, 1)
    ESTIMATES.write_text(json.dumps(estimates, indent=1), encoding="utf-8")


def _spoken(seconds: float) -> str:
    from stages.lib.core.progress import spoken  # only here: a run that skips all needs no tqdm

    return spoken(seconds)


def plan(targets: list[str], every: bool) -> tuple[dict[str, Stage], dict[str, set[str]]]:
    """Return the stages that `dvc repro` visits, by DVC's names, and the parents of each.

    targets: <file>, <file>:<name>, or the name of a stage of the root; every: all pipelines.
    """
    stages = dict(_stages())
    parents = _parents(stages)
    wanted = stages if every else needed(targets or ["dvc.yaml"], stages, parents)
    return wanted, parents


def needed(
    targets: list[str], stages: dict[str, Stage], parents: dict[str, set[str]]
) -> dict[str, Stage]:
    """Return the stages of targets, and all that these need, from those of all pipelines."""
    waiting = []
    for target in targets:
        waiting += [stage for stage in stages if _is_in(stage, target)]
    visited: set[str] = set()
    while waiting:
        stage = waiting.pop()
        if stage not in visited:
            visited.add(stage)
            waiting += parents[stage]
    return {stage: stages[stage] for stage in stages if stage in visited}


def _is_in(stage: str, target: str) -> bool:
    """Return whether a target names a stage: alone, with others of a group, or by its file."""
    file, _, name = stage.rpartition(":")
    whole = target if ":" in target or target.endswith(".yaml") else f"dvc.yaml:{target}"
    own = f"{file or 'dvc.yaml'}:{name}"
    return whole in (own, own.partition("@")[0], file or "dvc.yaml")


def in_order(stages: Iterable[str], parents: dict[str, set[str]]) -> list[str]:
    """Return the stages so that each follows its parents."""
    ordered: dict[str, None] = {}

    def add(stage: str) -> None:
        if stage not in ordered:
            for parent in parents[stage]:
                add(parent)
            ordered[stage] = None

    for stage in stages:
        add(stage)
    return list(ordered)


def _parents(stages: dict[str, Stage]) -> dict[str, set[str]]:
    """Return the stages whose outputs a stage reads: the same path, a file in it, or its folder."""
    makers: dict[str, set[str]] = {}  # of a path, and of every folder that holds it
    outputs: dict[str, str] = {}
    for name, stage in stages.items():
        for path in stage.writes:
            outputs[path] = name
            for place in (path, *map(str, PurePosixPath(path).parents)):
                makers.setdefault(place, set()).add(name)
    parents: dict[str, set[str]] = {}
    for name, stage in stages.items():
        parents[name] = set()
        for path in stage.reads:
            parents[name] |= makers.get(path, set())
            for folder in map(str, PurePosixPath(path).parents):
                if folder in outputs:
                    parents[name].add(outputs[folder])
    return parents


def _stages() -> Iterator[tuple[str, Stage]]:
    """Yield every stage of all pipelines with its name, as DVC's messages have it."""
    for file in (Path("dvc.yaml"), *sorted(Path("stages").rglob("dvc.yaml"))):
        content = _yaml(file)
        values = _values(file, content.get("vars", []))
        start = "" if file == Path("dvc.yaml") else f"{file.as_posix()}:"
        for name, entry in content["stages"].items():
            if "foreach" not in entry:
                yield f"{start}{name}", _stage(file, entry, values)
                continue
            group = entry["foreach"]
            items = _value(group, values) if isinstance(group, str) else group
            pairs = items.items() if isinstance(items, dict) else ((item, item) for item in items)
            for key, item in pairs:
                filled = values | {"key": key, "item": item}
                yield f"{start}{name}@{key}", _stage(file, entry["do"], filled)


def _values(file: Path, sources: list) -> dict[str, Any]:
    """Return the values that a dvc.yaml can name: of params.yaml beside it and of its `vars`."""
    beside = file.parent / "params.yaml"
    values = _yaml(beside) if beside.exists() else {}
    for source in sources:
        if isinstance(source, dict):
            values |= source
            continue
        path, _, keys = source.partition(":")
        others = _yaml(file.parent / path)
        values |= {key: others[key] for key in keys.split(",")} if keys else others
    return values


def _stage(file: Path, entry: dict[str, Any], values: dict[str, Any]) -> Stage:
    folder = file.parent / entry.get("wdir", ".")

    def paths(*sections: str) -> tuple[str, ...]:
        result = []
        for section in sections:
            for path in entry.get(section, []):
                text = path if isinstance(path, str) else next(iter(path))
                filled = NAME.sub(lambda name: str(_value(name[0], values)), text)
                result.append(Path(os.path.normpath(folder / filled)).as_posix())
        return tuple(result)

    return Stage(paths("deps"), paths("outs", "metrics", "plots"), str(entry.get("cmd", "")))


def _value(text: str, values: dict[str, Any]) -> Any:
    """Return the value of a text `${name}`, whose parts are keys."""
    value: Any = values
    for key in NAME.fullmatch(text)[1].split("."):  # type: ignore[index]
        value = value[key]
    return value


def _yaml(file: Path) -> dict[str, Any]:
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader) or {}
