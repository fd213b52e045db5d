"""Settings of the figures about heuristics."""

from typing import Annotated

from pydantic import Field

from stages.lib.params.sections import Section


class Portraits(Section):
    numbers: Annotated[int, Field(ge=1, le=20)]
    detail: Annotated[int, Field(ge=5, le=300)]
    layers: Annotated[int, Field(ge=1, le=16)]
    published: Annotated[float, Field(gt=0, lt=1)]
