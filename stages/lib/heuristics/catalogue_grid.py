"""Settings of the catalogue of heuristics: types and allowed values of each grid."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.lib.core.settings import Count, Section
from stages.lib.core.vocabulary import OPERATORS, Operator
from stages.lib.heuristics.names import is_name

Kind = Literal[
    "range",
    "modulo",
    "pattern",
    "value",
    "identical",
    "period",
    "both ranges",
    "both modulo",
    "digit sum",
]
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

    @model_validator(mode="after")
    def every_operator_has_ranges(self) -> "Grid":
        """Require a list for each operator."""
        missing = [operator for operator in OPERATORS if operator not in self.range_lengths]
        if missing:
            raise ValueError(f"range_lengths lacks {', '.join(missing)}; a list may be empty")
        return self


class Heuristics(Section):
    grid: str
    grids: Annotated[dict[str, Grid], Field(min_length=1)]
    custom: dict[str, str]

    @model_validator(mode="after")
    def grid_is_one_of_grids(self) -> "Heuristics":
        """Require that `grid` names one of `grids`."""
        if self.grid not in self.grids:
            raise ValueError(f"grid is {self.grid!r}, but grids has {', '.join(self.grids)}")
        return self

    @model_validator(mode="after")
    def custom_names_are_of_no_heuristic(self) -> "Heuristics":
        """Refuse custom names that are not plain text or that stand for another heuristic."""
        for name in self.custom:
            if not name.strip() or name != name.strip() or not name.isprintable():
                allowed = "must be printable text without blanks at its ends"
                raise ValueError(f"the custom name {name!r} {allowed}; rename it")
            if is_name(name):
                problem = "is the name of a heuristic with a predicate of its own"
                raise ValueError(f"the custom name {name!r} {problem}; rename it")
        return self
