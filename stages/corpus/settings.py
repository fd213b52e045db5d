"""Settings of the chapter corpus, stages/corpus/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field, model_validator

from stages.lib.core.settings import Percent, Section, Seed, Share
from stages.lib.core.words import Operator


class Cells(Section):
    largest_operand: Annotated[int, Field(ge=1, le=999)]
    largest_answer: Annotated[int, Field(ge=1, le=9999)]
    held_out_percent: Percent
    seed: Seed


class Facts(Section):
    countries: Annotated[int, Field(ge=2, le=400)]
    people: Annotated[int, Field(ge=2, le=400)]
    things: Annotated[int, Field(ge=2, le=400)]
    languages: Annotated[int, Field(ge=2, le=100)]
    kinds: Annotated[int, Field(ge=2, le=100)]
    seed: Seed


class Words(Section):
    symbol: str
    verb: str
    noun: str


class Tasks(Section):
    operators: dict[Operator, Words]
    arithmetic: Annotated[list[str], Field(min_length=1)]
    retrieval: Annotated[list[str], Field(min_length=1)]
    retrieval_things: Annotated[list[str], Field(min_length=2)]
    factual: dict[str, str]
    largest_word_number: Annotated[int, Field(ge=1, le=99)]
    largest_operand_of_three: Annotated[int, Field(ge=1, le=99)]
    shots: Annotated[list[Share], Field(min_length=1)]
    held_out_percent: Percent
    evaluation_prompts: Annotated[int, Field(ge=1, le=100_000)]
    seed: Seed

    @model_validator(mode="after")
    def shares_sum_to_one(self) -> "Tasks":
        if abs(sum(self.shots) - 1) > 1e-9:
            raise ValueError(f"shots must sum to 1, they sum to {sum(self.shots)}")
        return self
