"""Settings of the catalogue of heuristics."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.lib.params.sections import Count, NonNegative, Section, Seed
from stages.lib.words import OPERATORS, Operator

Kind = Literal["range", "modulo", "pattern", "value", "identical", "period", "both ranges", "both modulo", "digit sum"]
Modulus = Annotated[int, Field(ge=2, le=999)]


class Grid(Section):
    range_lengths: dict[Operator, list[Count]]
    operand_ranges_overlap: bool
    moduli: list[Modulus]
    patterns: list[Annotated[str, Field(pattern=r"^[.d]{3}$")]]
    values: bool
    identical: bool
    periods: list[Modulus]
    both_range_length: Annotated[int, Field(ge=0)]
    both_moduli: list[Modulus]
    digit_sum_places: list[Literal[1, 10, 100]]
    not_of_quotients: list[Kind]


class Heuristics(Section):
    grid: str
    grids: Annotated[dict[str, Grid], Field(min_length=1)]
    custom: dict[str, str]

    @model_validator(mode="after")
    def grid_is_one_of_grids(self) -> "Heuristics":
        if self.grid not in self.grids:
            raise ValueError(f"grid is {self.grid!r}, but grids has {', '.join(self.grids)}")
        return self


class AnswerSets(Section):
    operators: list[Operator]
    results: Annotated[int, Field(ge=2, le=20)]
    first_cells: Count
    covers: Annotated[float, Field(gt=0, le=1)]


class Scores(Section):
    smallest_corrected: Annotated[float, Field(gt=0, le=1)]
    answer_sets: AnswerSets
    neurons_at_once: Count


class Nulls(Section):
    draws: dict[Operator, Annotated[int, Field(ge=20, le=1_000_000)]]
    first_draws: Annotated[int, Field(ge=10, le=1000)]
    hopeless: Annotated[float, Field(gt=0, le=1)]
    smallest_corrected: Annotated[float, Field(gt=0, le=1)]
    thresholds: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
    neurons_at_once: Count
    seed: Seed

    @model_validator(mode="after")
    def first_draws_are_among_draws(self) -> "Nulls":
        if missing := sorted(set[str](OPERATORS) - self.draws.keys()):
            raise ValueError(f"draws lacks {', '.join(missing)}")
        if self.first_draws > min(self.draws.values()):
            raise ValueError(f"first_draws is {self.first_draws}, but there are only {min(self.draws.values())} draws")
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
