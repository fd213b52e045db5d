"""Settings of the chapter store, stages/store/params.yaml: types and allowed values."""

from typing import Annotated, Literal

from pydantic import Field

from stages.lib.core.settings import Count, Natural, Section


class Figures(Section):
    neurons_per_operator: Annotated[int, Field(ge=1, le=48)]


class Dump(Section):
    cells_per_block: Count
    neurons_per_chunk: Count
    store_dtype: Literal["float16", "float32"]
    largest_file_mib: Natural
