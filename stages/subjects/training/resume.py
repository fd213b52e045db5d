"""Carries a training run to its last step, with a bar, and on from where it was interrupted."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from stages.lib.core import progress
from stages.subjects.training.loop import Batch, Run

STATE = ".state.safetensors"  # hidden: no file of the model's
SECONDS_BETWEEN_STATES = 45  # a kill loses no more than this


class Examples(Protocol):
    """The examples of each step, and those by name on which accuracy is measured."""

    evaluation: dict[str, Batch]

    def of_step(self, step: int) -> Batch: ...


def complete(
    run: Run,
    examples: Examples,
    folder: Path,
    known: str,
    kept: Callable[[], None],
    said: Callable[[dict], str],
) -> None:
    """Takes the run to its last step. Interrupted, it says so and ends the program; called again, it goes on from there.

    folder: empty but for what `kept`, called at every step, writes there, and while it lasts for the run's state; `known`: digest of
    all that the trained weights depend on, so that a state of other settings, data or code is never used; said: what the bar shows
    of the log's last row.
    """
    state = folder / STATE
    if not (state.exists() and run.load_state(state, known)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    saved = time.monotonic()
    with (
        _interruption() as asked_to_stop,
        progress.bar(
            total=run.settings.steps, initial=run.step, desc=run.section, unit="step"
        ) as bar,
    ):
        while True:
            due = run.step % run.settings.evaluate_every == 0 or run.step == run.settings.steps
            if due and (not run.log or run.log[-1]["step"] != run.step):
                run.measure(examples.evaluation)
            kept()
            if run.step == run.settings.steps:
                return
            stop = asked_to_stop()
            if stop or time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                run.save_state(state, known)
                saved = time.monotonic()
            if stop:
                raise SystemExit(
                    f"interrupted at step {run.step}; the same command continues from there"
                )
            run.advance(examples.of_step(run.step))
            bar.set_postfix_str(f"loss {run.loss:.3f}, {said(run.log[-1])}", refresh=False)
            bar.update()


def deliver(partial: Path, folder: Path) -> None:
    """Puts what a completed run has written in its place."""
    whole = folder.with_suffix(".whole")
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(partial, whole, ignore=lambda *_: [STATE])
    shutil.rmtree(folder, ignore_errors=True)
    whole.rename(folder)
    shutil.rmtree(partial)  # only now: a kill before this goes on from the last state


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C is only noted: amid a step, weights and optimiser are half of this step and half of the last."""
    noted: list[int] = []

    def note(number: int, frame: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
