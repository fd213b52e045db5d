"""Compare the peak memory of stages with what `bag check` says before they run."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from stages.lib.console import pipeline
from stages.lib.core.settings import read
from stages.store import description
from stages.store.check_options import IN_ENTRY, parsed
from stages.store.costs import CostRow

LONGEST = 60.0  # seconds; a stage that takes longer is stopped, and may not have its peak yet
EVERY = 0.1  # seconds between two readings of the peaks
COPIED = "dvc.yaml", "params.yaml", "stages", "pyproject.toml"
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class Peak(NamedTuple):
    """mib: of the largest process; is_whole: whether the stage ended by itself."""

    mib: float
    is_whole: bool


def stages(subject: str, longest: float = LONGEST) -> None:
    """Print the peak memory of each stage's largest process, and the estimate of `bag check`.

    All outputs of the model must be here. Stages run in a copy of this folder, which has links to
    them. Bar: within 1.3 x.
    """
    every = dict(by_name(subject))
    ratios = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        copy(Path(folder))
        for row in estimated(subject):
            peaks = [measured(every[stage], Path(folder), longest) for stage in row.stages]
            peak, estimate = max(peaks).mib, row.memory / 2**20
            ratios.append(peak / estimate)
            cut = "" if all(each.is_whole for each in peaks) else f", {longest:.0f} s of it"
            figures = f"{peak:.0f} MiB, {ratios[-1]:.2f} of {estimate:.0f}"
            print(f"stages: {row.name} {figures}{cut}", flush=True)
    print(f"stages: {min(ratios):.2f} to {max(ratios):.2f} x the estimates (bar 0.77 to 1.3)")


def by_name(subject: str) -> Iterator[tuple[str, pipeline.Stage]]:
    """Yield the stages of a model by chapter/stage, with their whole commands."""
    pipelines, _ = pipeline.plan([], every=True)
    for name, stage in pipelines.items():
        file, _, stage_and_key = name.rpartition(":")
        stage_name, _, key = stage_and_key.partition("@")
        if key == subject:
            command = stage.command.replace("${key}", key)
            yield f"{Path(file).parent.name}/{stage_name}", replace(stage, command=command)


def estimated(subject: str) -> list[CostRow]:
    """Return what `bag check` says of the stages that the model's page needs."""
    params = read()
    entry = params["subjects"][subject]
    keys = {key: value for key, value in entry.items() if key in IN_ENTRY}
    sizes = params["sizes"].get(subject, {})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(keys | ({"sizes": sizes} if sizes else {}), file)
        file.flush()
        options = parsed("check", [entry["source"], "--entry", file.name])
    return [row for row in description.checked(options).rows if not row.extra]


def copy(folder: Path) -> None:
    """Copy the code, and link to the outputs, whose files no stage changes in place."""
    for name in COPIED:
        make = shutil.copytree if Path(name).is_dir() else shutil.copy2
        make(name, folder / name)
    for name in ("data", "reports"):
        shutil.copytree(name, folder / name, copy_function=os.link)


def measured(stage: pipeline.Stage, folder: Path, longest: float) -> Peak:
    """Run a stage without its outputs, as DVC does, and put its old outputs back."""
    for output in stage.writes:
        _remove(folder / output)
    command = shlex.split(stage.command)
    command[0] = sys.executable
    began, peaks = time.perf_counter(), [0.0]
    # a session of its own tells which processes are the stage's
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    is_whole = True
    while process.poll() is None:
        peaks += _peaks(process.pid)
        if is_whole and time.perf_counter() - began > longest:
            is_whole = False
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(EVERY)
    _, errors = process.communicate()
    if is_whole and process.returncode:
        raise SystemExit(f"{stage.command} failed:\n{errors}")
    for output in stage.writes:
        _remove(folder / output)
        if Path(output).is_dir():
            shutil.copytree(output, folder / output, copy_function=os.link)
        else:
            os.link(output, folder / output)
    return Peak(max(peaks), is_whole)


def _peaks(session: int) -> Iterator[float]:
    """Yield the peak memory so far of each process of a session, in MiB."""
    for process in psutil.pids():
        with suppress(OSError, TypeError):  # it has ended
            if os.getsid(process) == session:
                status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
                yield int(PEAK.search(status)[1]) / 1024  # type: ignore[index]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
