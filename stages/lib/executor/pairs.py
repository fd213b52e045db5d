"""Read tables of prompt pairs as arrays: clean prompts, counterfactuals and positions of roles."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stages.lib.executor.columns import INTEGER, INTEGERS, InterventionError, typed

BOTH = ("", "counterfactual_")  # prefixes of the columns of a pair's two prompts
COLUMNS = {
    "pair": INTEGER,
    "tokens": INTEGERS,
    "answer_token": INTEGER,
    "counterfactual_tokens": INTEGERS,
    "counterfactual_answer_token": INTEGER,
}


@dataclass(frozen=True, eq=False)
class PromptPairs:
    """Pairs of prompts of one length, each array (pairs,) or (pairs, positions).

    number: as in the table; positions: role -> token position in the clean prompt;
    counterfactual_positions: the same in the counterfactual prompt. Both also map each location
    that both prompts have, "0", "1", …, to itself. answers, counterfactual_answers: tokens.
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
        """Return whether all arrays of both are equal."""
        if self is other:
            return True
        return all(_equal(mine, getattr(other, name)) for name, mine in vars(self).items())

    def part(self, pairs: slice) -> "PromptPairs":
        """Return some of the pairs."""
        return PromptPairs(*(_mapped(lambda x: x[pairs], value) for value in vars(self).values()))

    def alone(self) -> Iterator[tuple[int, "PromptPairs"]]:
        """Yield each pair by itself, with its number."""
        for row, number in enumerate(self.number.tolist()):
            yield number, self.part(slice(row, row + 1))


def _equal(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, dict):
        return np.array_equal(mine, theirs)
    if mine.keys() != theirs.keys():
        return False
    return all(np.array_equal(at, theirs[role]) for role, at in mine.items())


def _mapped(function: Callable[[np.ndarray], np.ndarray], value: Any) -> Any:
    """Apply a function to an array, or to each array of a dict."""
    if isinstance(value, dict):
        return {role: function(at) for role, at in value.items()}
    return function(value)


def roles(table: pl.DataFrame) -> list[str]:
    """Return the roles that a table of pairs gives positions for."""
    return [field.name for field in table.schema["positions"].fields]  # type: ignore[attr-defined]


def check(table: pl.DataFrame, vocabulary: int) -> None:
    """Raise InterventionError unless a model with that many tokens can run all pairs of a table.

    Pairs need distinct numbers, tokens below `vocabulary` and the same roles in both prompts.
    """
    known = typed(table, "pairs", "pair", COLUMNS)
    clean, other = (_roles(table, f"{which}positions") for which in BOTH)
    if clean != other:
        raise InterventionError(
            "positions and counterfactual_positions of a table of pairs must name the same roles: "
            f"not {', '.join(clean)} and {', '.join(other)}"
        )
    if "last" not in clean:
        problem = f"positions of a table of pairs name the roles {', '.join(clean) or 'none'}"
        raise InterventionError(f"{problem}; add last, the last token of the prompt")
    known = known.with_columns(table[f"{which}positions"] for which in BOTH)
    twice = known["pair"].is_duplicated()
    if twice.any():
        number = known["pair"].filter(twice)[0]
        raise InterventionError(f"pair {number} is there twice; each pair has its own number")
    for which in BOTH:
        _check_tokens(known, which, vocabulary)
        _check_positions(known, which, clean)


def _check_tokens(table: pl.DataFrame, which: str, vocabulary: int) -> None:
    """Raise InterventionError on a token that the model does not have."""
    tokens, answer = pl.col(f"{which}tokens"), pl.col(f"{which}answer_token")
    least, most = tokens.list.min(), tokens.list.max()
    allowed = f"the model's tokens are 0..{vocabulary - 1}"
    wrong = pl.when(least < 0).then(least).otherwise(most)
    problem = f"{which}tokens hold {{}}; {allowed}, and a prompt has at least one"
    _refuse(table, (least >= 0) & (most < vocabulary), wrong, problem)
    is_known = answer.is_between(0, vocabulary - 1)
    _refuse(table, is_known, answer, f"{which}answer_token is {{}}; {allowed}")


def _check_positions(table: pl.DataFrame, which: str, roles: list[str]) -> None:
    """Raise InterventionError on a position outside its prompt."""
    length = pl.col(f"{which}tokens").list.len()
    for role in roles:
        position = pl.col(f"{which}positions").struct.field(role)
        problem = f"{which}positions.{role} is {{}}, where no token of the prompt is"
        _refuse(table, (position >= 0) & (position < length), position, problem)


def _roles(table: pl.DataFrame, name: str) -> list[str]:
    """Return the roles of a column of positions, sorted. Raises InterventionError."""
    kind = table.schema.get(name)
    if not isinstance(kind, pl.Struct) or not all(f.dtype.is_integer() for f in kind.fields):
        raise InterventionError(
            f"a table of pairs needs the column {name}, a struct of integers: "
            "for each role the position of its token"
        )
    return sorted(field.name for field in kind.fields)


def _refuse(table: pl.DataFrame, sound: pl.Expr, value: pl.Expr, problem: str) -> None:
    """Raise InterventionError on the first pair that is not sound; problem: holds its value."""
    wrong = table.filter(~sound.fill_null(False)).select("pair", value.alias("value")).head(1)
    for number, shown in wrong.iter_rows():
        raise InterventionError(f"pair {number}: {problem.format(shown)}")


def by_length(table: pl.DataFrame, most: int) -> list[PromptPairs]:
    """Return a table's pairs in groups of equal lengths, of at most `most` pairs each.

    Groups are in order of both lengths, then of the pairs' numbers.
    """
    lengths = {
        "length": pl.col("tokens").list.len(),
        "other_length": pl.col("counterfactual_tokens").list.len(),
    }
    ordered = table.with_columns(**lengths).sort("length", "other_length", "pair")
    groups: list[PromptPairs] = []
    for same in ordered.partition_by("length", "other_length", maintain_order=True):
        groups += map(_pairs, same.iter_slices(most))
    return groups


def _pairs(group: pl.DataFrame) -> PromptPairs:
    """Return pairs of equal lengths as arrays."""
    clean, other = _tokens(group, "tokens"), _tokens(group, "counterfactual_tokens")
    shorter = min(clean.shape[1], other.shape[1])
    return PromptPairs(
        group["pair"].to_numpy(),
        clean,
        _positions(group, "positions", shorter),
        group["answer_token"].to_numpy().astype(np.int64),
        other,
        _positions(group, "counterfactual_positions", shorter),
        group["counterfactual_answer_token"].to_numpy().astype(np.int64),
    )


def _tokens(group: pl.DataFrame, name: str) -> np.ndarray:
    return np.array(group[name].to_list(), np.int64)


def _positions(group: pl.DataFrame, name: str, locations: int) -> dict[str, np.ndarray]:
    """Return role -> position and location -> position, each (pairs,)."""
    positions: dict[str, np.ndarray] = {}
    for role in roles(group):
        positions[role] = group[name].struct.field(role).to_numpy().astype(np.int64)
    for location in range(locations):
        positions[str(location)] = np.full(len(group), location, np.int64)
    return positions
