"""Work that notes who did each unit of it, and in which units end by force what they are told to.

`python -m tests.lib.noted FOLDER WHAT`; WHAT such as "3:worker 7:machine 9:driver": unit 3 kills the worker that first does it, unit 7
its machine's raylet, unit 9 the process that the work is for ("9:interrupt" is Ctrl-C there); "5:always" kills every worker, "5:error"
raises, and "5:foreign" is a worker that does not compute as the first one does.
"""

import os
import signal
import sys
from pathlib import Path

from stages.lib.units.pool import Refused, Report
from stages.lib.units.queue import Unit
from stages.lib.units.work import carry_out

NUMBER = 24


class Noted:
    title, counts, few = "notes", "unit", 0

    def __init__(self, folder: str, what: str):
        self.folder = Path(folder)
        self.told = {
            int(number): told for number, _, told in (one.partition(":") for one in what.split())
        }
        self.units = [Unit(f"the unit {number}", group=number // 5) for number in range(NUMBER)]
        first = self.folder / "first"
        if not first.exists():  # the driver is first
            first.write_text(str(os.getpid()))
        self.driver = int(first.read_text())

    def missing(self) -> list[int]:
        return [number for number in range(NUMBER) if not (self.folder / f"{number}").exists()]

    def do(self, number: int, report: Report) -> None:
        told, before = self.told.get(number), self.folder / f"told {number}"
        if told == "error":
            raise ValueError(f"unit {number} cannot be done")
        if told == "foreign" and not before.exists():
            before.touch()
            raise Refused("its logits are not those of the first")
        if told == "interrupt" and not before.exists():
            before.touch()
            os.kill(self.driver, signal.SIGINT)
            signal.pause()  # until it is ended
        if told in ("worker", "machine", "driver", "always") and (
            told == "always" or not before.exists()
        ):
            before.touch()
            os.kill(
                {"machine": os.getppid(), "driver": self.driver}.get(told, os.getpid()),
                signal.SIGKILL,
            )
            if told == "machine":
                signal.pause()
        with (self.folder / f"{number}").open("x") as file:
            file.write(str(os.getpid()))

    def finish(self) -> None:
        (self.folder / "whole").touch()


if __name__ == "__main__":
    carry_out(Noted, *sys.argv[1:])
