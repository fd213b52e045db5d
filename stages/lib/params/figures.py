"""Settings of the figures."""

from typing import Annotated

from pydantic import Field

from stages.lib.params.sections import Section


class Figures(Section):
    neurons_per_operator: Annotated[int, Field(ge=1, le=48)]
