"""Settings of passes through a model, params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field

from stages.lib.core.settings import Count, Section


class Passes(Section):
    prompts_per_pass: Count


class Runs(Section):
    rows_per_pass: Count
    memory_mib: Annotated[int, Field(ge=128, le=10**9)]
    runs_per_part: Count
