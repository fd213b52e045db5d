"""Settings of the planted subject."""

from typing import Annotated

from pydantic import Field, model_validator

from stages.lib.params.sections import Count, Positive, Section, Seed, Share


class Grades(Section):
    exact: Count
    partial: Count
    soft: Count
    mixture: Count
    noise: Count


class Planted(Section):
    copies: Annotated[int, Field(ge=1, le=100)]
    neurons: Grades
    noises: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]
    noise_functions: Annotated[int, Field(ge=2, le=100)]
    smallest_share: Share
    largest_share: Share
    vote: Positive
    others: Annotated[float, Field(gt=0, le=0.001)]
    seed: Seed

    @model_validator(mode="after")
    def shares_leave_heuristics(self) -> "Planted":
        if self.smallest_share >= self.largest_share:
            raise ValueError(f"smallest_share is {self.smallest_share}, not below largest_share = {self.largest_share}")
        return self
