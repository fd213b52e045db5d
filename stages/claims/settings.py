"""Settings of the chapter claims, stages/claims/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field

from stages.lib.core.settings import Count, Few, Section, Seed


class Faults(Section):
    published: Annotated[float, Field(gt=0, lt=1)]
    prompts: Few
    fault_seed: Seed
    cap: Count
