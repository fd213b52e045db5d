"""Prompt pairs as arrays: clean prompts, their counterfactuals, and where in either the tokens of each role stand."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from stages.lib.executor.columns import INTEGER, INTEGERS, InterventionError, typed

BOTH = ("", "counterfactual_")  # in front of the columns of either prompt of a pair
COLUMNS = {"pair": INTEGER} | {
    f"{of}{name}": kind
    for of in BOTH
    for name, kind in (("tokens", INTEGERS), ("answer_token", INTEGER))
}


@dataclass(frozen=True, eq=False)
class PromptPairs:
    """Pairs of prompts of one length, each array (pairs,) or (pairs, positions).

    number: as in the table; positions: role -> token position in the clean prompt, counterfactual_positions: in the other, and
    in both "0", "1", … -> that very place, as far as both prompts have one; answers, counterfactual_answers: tokens.
    """

    number: np.ndarray
    tokens: np.ndarray
    positions: dict[str, np.ndarray]
    answers: np.ndarray
    counterfactual_tokens: np.ndarray
    counterfactual_positions: dict[str, np.ndarray]
    counterfactual_answers: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def same(self, other: "PromptPairs") -> bool:
        """Whether these are the same pairs: number, tokens and all."""

        def equal(mine: Any, theirs: Any) -> bool:
            if isinstance(mine, dict):
                return mine.keys() == theirs.keys() and all(
                    np.array_equal(at, theirs[role]) for role, at in mine.items()
                )
            return np.array_equal(mine, theirs)

        return self is other or all(
            equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)
        )

    def part(self, chosen: slice) -> "PromptPairs":
        """Some of the pairs."""

        def cut(value: Any) -> Any:
            return (
                {role: at[chosen] for role, at in value.items()}
                if isinstance(value, dict)
                else value[chosen]
            )

        return PromptPairs(*(cut(getattr(self, field.name)) for field in fields(self)))

    def alone(self) -> Iterator[tuple[int, "PromptPairs"]]:
        """Each pair by its number."""
        for place, number in enumerate(self.number.tolist()):
            yield number, self.part(slice(place, place + 1))


def roles(table: pl.DataFrame) -> list[str]:
    """The roles that a table of pairs gives positions for."""
    return [field.name for field in table.schema["positions"].fields]  # type: ignore[attr-defined]


def check(table: pl.DataFrame, vocabulary: int) -> None:
    """Raises InterventionError on a pair that is there twice, and on one that a model of so many tokens cannot be asked."""
    known = typed(table, "pairs", "pair", COLUMNS)
    named = [_roles(table, f"{of}positions") for of in BOTH]
    if named[0] != named[1]:
        both = " and ".join(", ".join(names) for names in named)
        raise InterventionError(
            f"a table of pairs names roles in positions and in counterfactual_positions, the same: not {both}"
        )
    known = known.with_columns(table[f"{of}positions"] for of in BOTH)
    if (twice := known["pair"].is_duplicated()).any():
        raise InterventionError(
            f"pair {known['pair'].filter(twice)[0]} is there twice; each pair has a number of its own"
        )
    for of in BOTH:
        tokens, answer = pl.col(f"{of}tokens"), pl.col(f"{of}answer_token")
        least, most, there = (
            tokens.list.min(),
            tokens.list.max(),
            f"the model's tokens are 0..{vocabulary - 1}",
        )
        wrong = pl.when(least < 0).then(least).otherwise(most)
        _refuse(
            known,
            (least >= 0) & (most < vocabulary),
            wrong,
            f"{of}tokens hold {{}}; {there}, and a prompt has at least one",
        )
        _refuse(
            known,
            answer.is_between(0, vocabulary - 1),
            answer,
            f"{of}answer_token is {{}}; {there}",
        )
        for role in named[0]:
            place = pl.col(f"{of}positions").struct.field(role)
            _refuse(
                known,
                (place >= 0) & (place < tokens.list.len()),
                place,
                f"{of}positions.{role} is {{}}, where no token of the prompt is",
            )


def _roles(table: pl.DataFrame, name: str) -> list[str]:
    kind = table.schema.get(name)
    if not isinstance(kind, pl.Struct) or not all(
        field.dtype.is_integer() for field in kind.fields
    ):
        raise InterventionError(
            f"a table of pairs needs the column {name}, of each role the place of its token: a struct of integers"
        )
    return sorted(field.name for field in kind.fields)


def _refuse(table: pl.DataFrame, sound: pl.Expr, value: pl.Expr, what: str) -> None:
    """Raises InterventionError on the first pair that is not sound, with its value put into what is said."""
    wrong = table.filter(~sound.fill_null(False)).select("pair", value.alias("value")).head(1)
    for number, found in wrong.iter_rows():
        raise InterventionError(f"pair {number}: {what.format(found)}")


def by_length(table: pl.DataFrame, most: int) -> list[PromptPairs]:
    """A table's pairs, those of equal lengths together, at most `most` in one; in order of length, then number."""
    lengths = [
        pl.col("tokens").list.len().alias("length"),
        pl.col("counterfactual_tokens").list.len().alias("other_length"),
    ]
    sorted_by = table.with_columns(lengths).sort("length", "other_length", "pair")
    groups = sorted_by.partition_by("length", "other_length", maintain_order=True)
    return [
        _pairs(group[first : first + most])
        for group in groups
        for first in range(0, len(group), most)
    ]


def _pairs(group: pl.DataFrame) -> PromptPairs:
    def tokens(name: str) -> np.ndarray:
        return np.array(group[name].to_list(), np.int64)

    clean, other = tokens("tokens"), tokens("counterfactual_tokens")
    places = {
        str(place): np.full(len(group), place, np.int64)
        for place in range(min(clean.shape[1], other.shape[1]))
    }

    def positions(name: str) -> dict[str, np.ndarray]:
        return {
            role: group[name].struct.field(role).to_numpy().astype(np.int64)
            for role in roles(group)
        } | places

    return PromptPairs(
        group["pair"].to_numpy(),
        clean,
        positions("positions"),
        group["answer_token"].to_numpy().astype(np.int64),
        other,
        positions("counterfactual_positions"),
        group["counterfactual_answer_token"].to_numpy().astype(np.int64),
    )
