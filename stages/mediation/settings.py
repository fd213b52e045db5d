"""Settings of the chapter mediation, stages/mediation/params.yaml: types and allowed values."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from stages.lib.core.settings import Count, Few, Natural, NonNegative, Section, Seed
from stages.lib.core.templates import placeholders
from stages.lib.core.words import ARITHMETIC, TASKS, Arithmetic
from stages.mediation.pairs.templates import ThreeOperands

OpenShare = Annotated[float, Field(gt=0, lt=1)]


class Bracketed(Section):
    left: ThreeOperands
    right: ThreeOperands


class FilledTemplate(Section):
    """A template that a file fills. columns: placeholder, or answer -> its column in the file, where that has another name."""

    template: str
    file: Annotated[str, Field(pattern=r"^.+\.(csv|jsonl)$")]
    columns: dict[str, str] = Field(default_factory=dict)

    @field_validator("template")
    @classmethod
    def _can_be_filled(cls, template: str) -> str:
        if not (found := placeholders(template)) or "answer" in found:
            raise ValueError('a template needs a placeholder, such as "The capital of {entity} is", and {answer} is not for the prompt')
        return template

    @model_validator(mode="after")
    def _columns_are_used(self) -> Self:
        used = {*placeholders(self.template), "answer"}
        if unused := sorted(self.columns.keys() - used):
            raise ValueError(f"columns names {unused[0]!r}; the template {self.template!r} takes {', '.join(sorted(used))}")
        return self


class Mediation(Section):
    pairs_per_template: dict[str, Annotated[int, Field(ge=0, le=100_000)]]
    shots: dict[Arithmetic, Annotated[int, Field(ge=0, le=20)]]
    operands: Annotated[list[Natural], Field(min_length=2, max_length=2)]
    smallest_result: Natural
    bracketed: Bracketed
    draws_per_pair: Few
    mediation_seed: Seed
    tables: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Annotated[list[FilledTemplate], Field(min_length=1)]]

    @model_validator(mode="after")
    def _every_task_has_its_numbers(self) -> Self:
        if own := sorted(self.tables.keys() & set(TASKS)):
            raise ValueError(f"tables names {own[0]!r}, which is a task already; call it something else")
        for key, found, tasks in (
            ("pairs_per_template", set(self.pairs_per_template), {*TASKS, *self.tables}),
            ("shots", set[str](self.shots), set[str](ARITHMETIC)),
        ):
            for wrong in sorted(found ^ tasks):
                problem = "lacks" if wrong in tasks else "names"
                raise ValueError(f"{key} {problem} {wrong!r}; the tasks are {', '.join(sorted(tasks))}")
        if self.operands[0] > self.operands[1]:
            raise ValueError(f"operands is {self.operands}; it is the smallest and the largest")
        return self


class MediationInterventions(Section):
    single_heads: bool


class MediationEffects(Section):
    mediation_replicates: Annotated[int, Field(ge=10, le=100000)]
    published_floor: NonNegative


class UnitMediation(Section):
    single_units: bool
    mediated_pairs: Count
    unit_seed: Seed


class NeuronOverlap(Section):
    overlap_ks: Annotated[list[Count], Field(min_length=1)]


class OverlapFigures(Section):
    drawn_share: OpenShare
    level: OpenShare
