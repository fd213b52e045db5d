"""Settings of the machine and of what runs on it, params.yaml: types and allowed values."""

from typing import Annotated, Literal

from pydantic import Field

from stages.lib.core.settings import Count, Section, Threads


class Machine(Section):
    device: Literal["cpu", "cuda"]
    threads: Threads


class Passes(Section):
    prompts_per_pass: Count


class Runs(Section):
    rows_per_pass: Count
    memory_mib: Annotated[int, Field(ge=128, le=10**9)]
    runs_per_part: Count
