"""Settings of what is read off a subject's residual stream."""

from typing import Annotated

from pydantic import Field

from stages.lib.params.sections import Count, Section, Seed


class Probes(Section):
    prompts: Annotated[int, Field(ge=20)]
    fewest_prompts: Annotated[int, Field(ge=20)]
    test_percent: Annotated[int, Field(ge=10, le=50)]
    shrinkage: Annotated[float, Field(gt=0, le=1)]
    layers_at_once: Count
    seed: Seed


class LateLayers(Section):
    readable: Annotated[float, Field(gt=0, le=1)]
