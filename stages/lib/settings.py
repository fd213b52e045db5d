"""Settings that several chapters share: passes through a model, downloaded models, digits."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from stages.lib.core import environment
from stages.lib.core.settings import Count, Section


class Passes(Section):
    """Forward passes of the dump and of prompts."""

    prompts_per_pass: Count

    @property
    def prompts(self) -> int:
        """Return how many prompts one pass takes on this machine's device."""
        return self.prompts_per_pass * environment.passes()


class Runs(Section):
    """Forward passes under interventions."""

    rows_per_pass: Count
    memory_mib: Annotated[int, Field(ge=128, le=10**9)]
    runs_per_part: Count

    @property
    def rows(self) -> int:
        """Return the rows (token positions x prompts x copies) of one pass on this machine's
        device."""
        return self.rows_per_pass * environment.passes()

    @property
    def memory(self) -> int:
        """Return how many bytes the rows and stored activations may take on the device."""
        return (self.memory_mib << 20) * environment.passes()


COMMIT = re.compile("[0-9a-f]{40}")


def _commit(text: str) -> str:
    if not COMMIT.fullmatch(text):
        allowed = "it is a commit, 40 of 0-9 and a-f: branches and tags move"
        raise ValueError(f"{allowed}; `bag add NAME org/name` prints the current commit of main")
    return text


class HubModel(Section):
    """A model of the Hugging Face Hub at one commit."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    commit: Annotated[str, AfterValidator(_commit)]


class GgufModel(Section):
    """A GGUF file that is converted to a model folder."""

    file: Annotated[str, Field(min_length=1)]


class Digits(Section):
    """One model, and its entries that predict the first, second and third digit of an answer.

    DVC needs every key: if only two digits are compared, third repeats second.
    """

    source: str
    first: str
    second: str
    third: str

    @property
    def entries(self) -> list[str]:
        """Return the entry of each digit, two or three of them."""
        entries = [self.first, self.second]
        if self.third != self.second:
            entries.append(self.third)
        return entries
