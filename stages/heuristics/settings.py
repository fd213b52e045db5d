"""Settings of the chapter heuristics, stages/heuristics/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field, model_validator

from stages.lib.core.settings import Count, Few, NonNegative, Section, Seed
from stages.lib.core.words import OPERATORS, Operator
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
    smallest_corrected: Annotated[float, Field(gt=0, le=1)]
    answer_sets: AnswerSets
    neurons_per_unit: Count


class Glance(Section):
    draws: Annotated[int, Field(ge=10, le=1000)]
    hopeless: Annotated[float, Field(gt=0, le=1)]


class Nulls(Section):
    draws: dict[Operator, Annotated[int, Field(ge=20, le=1_000_000)]]
    looks: Annotated[list[Glance], Field(min_length=1)]
    smallest_corrected: Annotated[float, Field(gt=0, le=1)]
    thresholds: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
    neurons_per_unit: Count
    seed: Seed

    @model_validator(mode="after")
    def looks_are_at_some_of_the_draws(self) -> "Nulls":
        if missing := sorted(set[str](OPERATORS) - self.draws.keys()):
            raise ValueError(f"draws lacks {', '.join(missing)}")
        looks = [look.draws for look in self.looks]
        if looks != sorted(set(looks)):
            raise ValueError(f"looks are after {', '.join(map(str, looks))} draws, but each must be after more than the one before")
        if looks[0] > min(self.draws.values()):
            raise ValueError(f"the first of looks is after {looks[0]} draws, but there are only {min(self.draws.values())} draws")
        if min(self.thresholds) < self.smallest_corrected:
            raise ValueError(
                f"threshold {min(self.thresholds)} is below smallest_corrected, {self.smallest_corrected}: nothing is known there"
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
