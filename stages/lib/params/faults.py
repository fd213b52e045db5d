"""Settings of the published code's faults."""

from typing import Annotated

from pydantic import Field

from stages.lib.params.sections import Count, Section, Seed


class Faults(Section):
    published: Annotated[float, Field(gt=0, lt=1)]
    prompts: Count
    fault_seed: Seed
    cap: Count
