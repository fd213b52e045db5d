"""Settings of the chapter heuristics, stages/heuristics/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field, model_validator

from stages.lib.core.settings import Count, Few, NonNegative, Section, Seed
from stages.lib.heuristics.answer_sets import AnswerSets


class Spectra(Section):
    components: Few
    neurons_at_once: Count


class Portraits(Section):
    numbers: Annotated[int, Field(ge=1, le=20)]
    detail: Annotated[int, Field(ge=5, le=300)]
    layers: Annotated[int, Field(ge=1, le=16)]
    published: Annotated[float, Field(gt=0, lt=1)]


class Scores(Section):
    smallest_chance_corrected: Annotated[float, Field(gt=0, le=1)]
    least_cells: Count
    answer_sets: AnswerSets
    neurons_per_unit: Count


class PermutationTests(Section):
    first_draws: Annotated[int, Field(ge=10, le=1000)]
    least_draws: Annotated[int, Field(ge=10, le=1_000_000)]
    most_draws: Annotated[int, Field(ge=10, le=10_000_000)]
    exceedances: Annotated[int, Field(ge=2, le=100)]
    smallest_chance_corrected: Annotated[float, Field(gt=0, le=1)]
    thresholds: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
    neurons_per_unit: Count
    seed: Seed

    @model_validator(mode="after")
    def draws_rise(self) -> "PermutationTests":
        """Require rising numbers of draws, and thresholds for which candidates are known."""
        draws = self.first_draws, self.least_draws, self.most_draws
        if sorted(draws) != list(draws):
            first, least, most = draws
            raise ValueError(
                f"first_draws, least_draws and most_draws are {first}, {least} and {most}; "
                "none may be larger than the next"
            )
        smallest = min(self.thresholds)
        if smallest < self.smallest_chance_corrected:
            raise ValueError(
                f"threshold {smallest} is below smallest_chance_corrected, "
                f"{self.smallest_chance_corrected}; raise the threshold, or lower that setting"
            )
        return self


class Overlaps(Section):
    smallest_overlap: Annotated[float, Field(gt=0, le=1)]


class Matches(Section):
    largest_overlap: Annotated[float, Field(gt=0, le=1)]
    smallest_strength: NonNegative


class Labels(Section):
    level: Annotated[float, Field(gt=0, le=1)]


class LabelCalibration(Section):
    levels: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
