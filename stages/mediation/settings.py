"""Check the settings in stages/mediation/params.yaml: their types and allowed values."""

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from stages.lib.core.settings import Count, Few, Natural, NonNegative, Section, Seed
from stages.lib.core.templates import placeholders
from stages.lib.core.vocabulary import ARITHMETIC, TASKS, Arithmetic
from stages.mediation.pairs.templates import ThreeOperands

TaskName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
OpenShare = Annotated[float, Field(gt=0, lt=1)]


class Bracketed(Section):
    """Templates of three operands, with brackets around the first operation or the second."""

    left: ThreeOperands
    right: ThreeOperands


class FilledTemplate(Section):
    """A template that a file fills.

    columns: placeholder, or `answer` -> its column in the file, if their names differ.
    """

    template: str
    file: Annotated[str, Field(pattern=r"^.+\.(csv|jsonl)$")]
    columns: dict[str, str] = Field(default_factory=dict)

    @field_validator("template")
    @classmethod
    def _can_be_filled(cls, template: str) -> str:
        names = placeholders(template)
        if not names or "answer" in names:
            example = '"The capital of {entity} is"'
            raise ValueError(
                f"a template needs a placeholder, such as {example}; it must not contain {{answer}}"
            )
        return template

    @model_validator(mode="after")
    def _columns_are_used(self) -> Self:
        used = {*placeholders(self.template), "answer"}
        unused = sorted(self.columns.keys() - used)
        if unused:
            listed = ", ".join(sorted(used))
            raise ValueError(
                f"columns names {unused[0]!r}; the template {self.template!r} takes {listed}"
            )
        return self


class Mediation(Section):
    """Prompt pairs of causal mediation."""

    pairs_per_template: dict[str, Annotated[int, Field(ge=0, le=100_000)]]
    shots: dict[Arithmetic, Annotated[int, Field(ge=0, le=20)]]
    operands: Annotated[list[Natural], Field(min_length=2, max_length=2)]
    smallest_result: Natural
    bracketed: Bracketed
    draws_per_pair: Few
    mediation_seed: Seed
    tables: dict[TaskName, Annotated[list[FilledTemplate], Field(min_length=1)]]

    @model_validator(mode="after")
    def _every_task_has_its_numbers(self) -> Self:
        own = sorted(self.tables.keys() & set(TASKS))
        if own:
            raise ValueError(f"tables names {own[0]!r}, which is already a task; rename it")
        _check_tasks("pairs_per_template", self.pairs_per_template, {*TASKS, *self.tables})
        _check_tasks("shots", self.shots, {*ARITHMETIC})
        if self.operands[0] > self.operands[1]:
            raise ValueError(
                f"operands is {self.operands}; it must be the smallest, then the largest"
            )
        return self


def _check_tasks(key: str, numbers: Iterable[str], tasks: set[str]) -> None:
    """Raise ValueError if a setting lacks a task or names an unknown one."""
    for wrong in sorted({*numbers} ^ tasks):
        problem = "lacks" if wrong in tasks else "names"
        listed = ", ".join(sorted(tasks))
        raise ValueError(f"{key} {problem} {wrong!r}; the tasks are {listed}")


class MediationInterventions(Section):
    """Components that take their counterfactual values."""

    single_heads: bool


class MediationEffects(Section):
    """Effects of components on the prompt pairs."""

    mediation_replicates: Annotated[int, Field(ge=10, le=100000)]
    published_floor: NonNegative


class UnitMediation(Section):
    """Single neurons and coordinates that take their counterfactual values."""

    single_units: bool
    mediated_pairs: Count
    unit_seed: Seed


class NeuronOverlap(Section):
    """Whether kinds of question share units."""

    overlap_ks: Annotated[list[Count], Field(min_length=1)]


class OverlapFigures(Section):
    """Figures of shared units."""

    drawn_share: OpenShare
    level: OpenShare
