"""Settings that several chapters share: passes through a model, and models from elsewhere."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from stages.lib.core import machine
from stages.lib.core.settings import Count, Section


class Passes(Section):
    prompts_per_pass: Count

    @property
    def prompts(self) -> int:
        """Prompts of one pass on this machine's device."""
        return self.prompts_per_pass * machine.passes(machine.PROMPTS)


class Runs(Section):
    rows_per_pass: Count
    memory_mib: Annotated[int, Field(ge=128, le=10**9)]
    runs_per_part: Count

    @property
    def rows(self) -> int:
        """Token positions x prompts x copies of one pass on this machine's device."""
        return self.rows_per_pass * machine.passes(machine.RUNS)

    @property
    def memory(self) -> int:
        """Bytes that they, and what is kept between them, may take there."""
        return (self.memory_mib << 20) * machine.passes(machine.RUNS)


COMMIT = re.compile("[0-9a-f]{40}")


def _commit(text: str) -> str:
    if not COMMIT.fullmatch(text):
        raise ValueError("it is a commit, 40 of 0-9 and a-f: branches and tags move; `bag add NAME org/name` says what main is now")
    return text


class HubModel(Section):
    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    commit: Annotated[str, AfterValidator(_commit)]


class GgufModel(Section):
    file: Annotated[str, Field(min_length=1)]
