"""Settings of the machine that stages run on."""

from typing import Literal

from stages.lib.params.sections import Section, Threads


class Machine(Section):
    device: Literal["cpu", "cuda"]
    threads: Threads
