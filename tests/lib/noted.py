"""Run work that notes which process did each unit, and in which some units end by force.

`python -m tests.lib.noted FOLDER ORDERS`. ORDERS such as "3:worker 7:machine 9:driver":
* 3:worker: unit 3 kills the worker that does it first;
* 7:machine: unit 7 kills the raylet of that worker's machine;
* 9:driver: unit 9 kills the process that the work is for; 9:interrupt sends it Ctrl-C;
* 5:always: unit 5 kills every worker that does it; 5:error: it raises an error;
* 5:foreign: the worker that does it first computes other numbers than the first worker.
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

    def __init__(self, folder: str, orders: str):
        self.folder = Path(folder)
        self.orders: dict[int, str] = {}
        for text in orders.split():
            number, _, order = text.partition(":")
            self.orders[int(number)] = order
        self.units = [Unit(f"the unit {number}", group=number // 5) for number in range(NUMBER)]
        first = self.folder / "first"
        if not first.exists():  # the driver is first
            first.write_text(str(os.getpid()))
        self.driver = int(first.read_text())

    def missing(self) -> list[int]:
        return [number for number in range(NUMBER) if not (self.folder / f"{number}").exists()]

    def do(self, number: int, report: Report) -> None:
        order, before = self.orders.get(number), self.folder / f"before {number}"
        if order == "error":
            raise ValueError(f"unit {number} cannot be done")
        if order == "always" or (order and not before.exists()):
            before.touch()
            self._end(order)
        with (self.folder / f"{number}").open("x") as file:
            file.write(str(os.getpid()))

    def _end(self, order: str) -> None:
        if order == "foreign":
            raise Refused("its logits are not those of the first")
        if order == "interrupt":
            os.kill(self.driver, signal.SIGINT)
        else:
            processes = {"machine": os.getppid(), "driver": self.driver}
            os.kill(processes.get(order, os.getpid()), signal.SIGKILL)
        if order in ("interrupt", "machine"):
            signal.pause()  # until it is ended
        if order == "driver":
            os._exit(1)  # before it does its unit, which may be the last

    def finish(self) -> None:
        (self.folder / "whole").touch()


if __name__ == "__main__":
    carry_out(Noted, *sys.argv[1:])
