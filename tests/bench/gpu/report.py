"""Report figures as they are measured, within a budget of time; an error ends one attempt."""

import gc
import json
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

GRACE = 5.0  # seconds after a section's deadline, in which the attempt under way may end
FRAMES = 4  # of a traceback
NAME = 46  # characters of a figure's name in the summary
BASE = ("section", "name", "value", "unit")
Result = TypeVar("Result")


class TimeUp(BaseException):  # not an Exception, which code on the way might handle
    """A section still runs after its deadline."""


class Report:
    """Run sections one after another; a section that ends early leaves its time to the next.

    seconds: of all sections; out: a file for the figures as JSON lines, None for no file.
    """

    def __init__(self, seconds: float, out: Path | None = None):
        self.seconds, self.out = seconds, out
        self.started = time.perf_counter()
        self.deadline, self.section_name = self.started, ""
        self.figures: list[dict[str, Any]] = []
        self.failures = 0
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("", encoding="utf-8")
        gc.freeze()  # collections skip what exists by now, such as modules

    def figure(self, name: str, value: float | str, unit: str = "", **more: float | str) -> None:
        """Print a figure, write it to the file and keep it for the summary.

        more: further values that belong to it, by name.
        """
        row = {"section": self.section_name, "name": name, "value": value, "unit": unit, **more}
        self.figures.append(row)
        print(f"{_elapsed(self.started)} {self.section_name}: {name}: {_text(row)}", flush=True)
        self._write(row)

    def value(self, name: str) -> float | None:
        """Return the number of a figure, None if it was not measured."""
        values = [row["value"] for row in self.figures if row["name"] == name]
        return float(values[-1]) if values and not isinstance(values[-1], str) else None

    def left(self) -> float:
        """Return the seconds up to the deadline of this section."""
        return self.deadline - time.perf_counter()

    def section(self, name: str, until: float, action: Callable[[], None]) -> None:
        """Run a section. until: its deadline, as a share of all seconds."""
        self.section_name = name
        self.deadline = self.started + until * self.seconds
        if self.left() <= 0:
            self.figure("section", "skipped: no time left")
            return
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, self.left() + GRACE)
        began = time.perf_counter()
        try:
            action()
        except TimeUp:
            self.figure("section", "stopped: its time is up")
        except Exception as error:
            self._failed("section", error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        free()
        self.figure("section took", time.perf_counter() - began, "s")

    def attempt(
        self,
        name: str,
        action: Callable[[], Result],
        seconds: float = 0.0,
    ) -> Result | None:
        """Return an action's result; None if it fails, or needs more seconds than are left."""
        if self.left() <= seconds:
            self.figure(name, "skipped: no time left")
            return None
        try:
            return action()
        except torch.OutOfMemoryError:
            self.figure(name, "out of memory")
        except Exception as error:
            self._failed(name, error)
        finally:
            free()
        return None

    def summary(self) -> None:
        """Print all figures as a table."""
        print(f"\n{'section':<9} {'figure':<{NAME}} value")
        for row in self.figures:
            print(f"{row['section']:<9} {row['name'][:NAME]:<{NAME}} {_text(row)}")
        spent = time.perf_counter() - self.started
        print(f"total {spent:.0f} s, {self.failures} failed", flush=True)

    def _failed(self, name: str, error: Exception) -> None:
        self.failures += 1
        lines = traceback.format_exception(error)
        print("".join([lines[0], *lines[1:][-FRAMES:]]), flush=True)
        first_line = (str(error).splitlines() or [""])[0]
        self.figure(name, f"FAILED: {type(error).__name__}: {first_line[:100]}")

    def _write(self, row: dict[str, Any]) -> None:
        if self.out:
            with self.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")


def free() -> None:
    """Return the memory of unreferenced objects."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _stop(*_: Any) -> None:
    raise TimeUp


def _elapsed(started: float) -> str:
    return f"[{time.perf_counter() - started:5.0f} s]"


def _text(row: dict[str, Any]) -> str:
    first = f"{_number(row['value'])} {row['unit']}".rstrip()
    more = [f"{name.replace('_', ' ')} {_number(row[name])}" for name in row if name not in BASE]
    return ", ".join([first, *more])


def _number(value: float | str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
