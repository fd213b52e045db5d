"""Check the settings of the chapter report, stages/report/params.yaml, which explains them."""

from typing import Annotated

from pydantic import Field

from stages.lib.core.settings import Count, Natural, Positive, Section


class Report(Section):
    """The pages reports/index.html and reports/study.html."""

    rows: Count
    rows_per_page: Count
    figure_kib: Positive
    figure_width: Annotated[int, Field(ge=200, le=4000)]
    figure_quality: Annotated[int, Field(ge=1, le=100)]
    neurons_listed: Count
    neurons_drawn: Natural
    facts_per_neuron: Count
    promoted_numbers: Annotated[int, Field(ge=1, le=100)]
    map_side: Annotated[int, Field(ge=10, le=1000)]
    detail_side: Annotated[int, Field(ge=10, le=1000)]
    largest_mib: Positive
