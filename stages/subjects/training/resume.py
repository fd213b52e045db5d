"""Run a training run to its last step, with a progress bar, and resume it after an interruption."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from stages.lib.core import progress
from stages.subjects.training.loop import Batch, Run

STATE = ".state.safetensors"  # hidden, because it is not a file of the model
SECONDS_BETWEEN_STATES = 45  # at most so much work is lost if the process is killed


class Examples(Protocol):
    """The examples of each step. evaluation: name -> examples on which accuracy is measured."""

    evaluation: dict[str, Batch]

    def of_step(self, step: int) -> Batch: ...


def complete(
    run: Run,
    examples: Examples,
    folder: Path,
    fingerprint: str,
    keep: Callable[[], None],
    summary: Callable[[dict], str],
) -> None:
    """Run a training run to its last step. After an interruption, another call continues it.

    folder: for the run's state and for what `keep` writes; otherwise empty.
    fingerprint: digest of everything that the trained weights depend on, so that the state of other
    settings, data or code is not used.
    keep: called at every step; summary: returns the progress bar's text for the log's last row.
    Raises SystemExit if interrupted.
    """
    state = folder / STATE
    if not (state.exists() and run.load_state(state, fingerprint)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    saved, steps = time.monotonic(), run.settings.steps
    with (
        _interruption() as interrupted,
        progress.bar(total=steps, initial=run.step, desc=run.section, unit="step") as bar,
    ):
        while True:
            due = run.step % run.settings.evaluate_every == 0 or run.step == steps
            if due and (not run.log or run.log[-1]["step"] != run.step):
                run.measure(examples.evaluation)
            keep()
            if run.step == steps:
                return
            stop = interrupted()
            if stop or time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                run.save_state(state, fingerprint)
                saved = time.monotonic()
            if stop:
                way_out = "the same command continues from there"
                raise SystemExit(f"interrupted at step {run.step}; {way_out}")
            run.advance(examples.of_step(run.step))
            bar.set_postfix_str(f"loss {run.loss:.3f}, {summary(run.log[-1])}", refresh=False)
            bar.update()


def deliver(partial: Path, folder: Path) -> None:
    """Move what a completed run has written to its folder."""
    whole = folder.with_suffix(".whole")
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(partial, whole, ignore=lambda *_: [STATE])
    shutil.rmtree(folder, ignore_errors=True)
    whole.rename(folder)
    shutil.rmtree(partial)  # last: if the process is killed before, the last state is still there


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Postpone Ctrl-C, and yield a function that returns whether it was pressed.

    Within a step, weights and optimiser are partly of this step and partly of the last. A second
    Ctrl-C interrupts at once.
    """
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
