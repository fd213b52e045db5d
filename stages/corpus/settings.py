"""Settings of the chapter corpus, stages/corpus/params.yaml: types and allowed values."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from stages.lib.core.settings import Percent, Section, Seed, Share
from stages.lib.core.templates import holding
from stages.lib.core.vocabulary import OPERATORS, Operator


class Cells(Section):
    largest_operand: Annotated[int, Field(ge=9, le=999)]
    largest_answer: Annotated[int, Field(ge=9, le=9999)]
    held_out_percent: Percent
    seed: Seed


class Facts(Section):
    countries: Annotated[int, Field(ge=2, le=400)]
    people: Annotated[int, Field(ge=2, le=400)]
    things: Annotated[int, Field(ge=2, le=400)]
    languages: Annotated[int, Field(ge=2, le=100)]
    kinds: Annotated[int, Field(ge=2, le=100)]
    seed: Seed


Word = Annotated[str, Field(pattern=r"^[^\s{}\x00-\x1f](?:[^{}\x00-\x1f]*[^\s{}\x00-\x1f])?$")]


TwoOperands = Annotated[str, holding("x", "y", any_of=("symbol", "verb", "noun"))]
Thing = Annotated[str, Field(pattern=r"^[^\s{}\x00-\x1f]+$")]
Retrieval = Annotated[str, holding("x", "y", "a", "b", "q")]
Relation = Literal["capital", "capital_of", "kind", "born_in", "native_language", "died_in"]
Fact = Annotated[str, holding("entity")]


class Words(Section):
    symbol: Word
    verb: Word
    noun: Word


def _require(key: str, names: Iterable[str], entries: Mapping[Any, object]) -> None:
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(f"{key} lacks {', '.join(missing)}; add an entry for each")


class Tasks(Section):
    operators: dict[Operator, Words]
    arithmetic: Annotated[list[TwoOperands], Field(min_length=2)]
    retrieval: Annotated[list[Retrieval], Field(min_length=1)]
    retrieval_things: Annotated[list[Thing], Field(min_length=2)]
    factual: dict[Relation, Fact]
    largest_word_number: Annotated[int, Field(ge=1, le=99)]
    largest_operand_of_three: Annotated[int, Field(ge=1, le=99)]
    shots: Annotated[list[Share], Field(min_length=1)]
    held_out_percent: Percent
    evaluation_prompts: Annotated[int, Field(ge=1, le=100_000)]
    seed: Seed

    @model_validator(mode="after")
    def nothing_is_missing_or_meant_twice(self) -> "Tasks":
        _require("operators", OPERATORS, self.operators)
        _require("factual", get_args(Relation), self.factual)
        for kind in ("symbol", "verb", "noun"):
            words = [getattr(self.operators[operator], kind) for operator in OPERATORS]
            for number, word in enumerate(words):
                if word in words[:number]:
                    problem = f"operators: {kind} {word!r} is that of two operators"
                    raise ValueError(f"{problem}; give each its own")
        return self

    @model_validator(mode="after")
    def shares_sum_to_one(self) -> "Tasks":
        if abs(sum(self.shots) - 1) > 1e-9:
            raise ValueError(f"shots must sum to 1, they sum to {sum(self.shots)}")
        return self


class RealTasks(Section):
    largest_operand: Annotated[int, Field(ge=9, le=999)]
    examples: Annotated[int, Field(ge=0, le=8)]
    evaluation_prompts: Annotated[int, Field(ge=1, le=100_000)]
