"""Pairs of prompts of which one runs and the other's values are written into it: what differs between the two is known.

A group draws pairs of one task, condition, template and operator. It knows no tokenizer, so that whoever asks it takes
those pairs that suit one, and asks again.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stages.mediation.pairs.draws import Counterparts
from stages.mediation.pairs.examples import Shown
from stages.mediation.pairs.operators import Operation
from stages.mediation.pairs.templates import Text, Wording

Asked = tuple[Operation, tuple[int, ...]]  # what is asked of which operands
Choice = tuple[Asked, Asked, np.ndarray]  # clean, counterfactual, and what both operations can be asked: (questions, operands)
Choose = Callable[[np.random.Generator], Choice | None]


@dataclass(frozen=True)
class Pair:
    clean: Text
    counterfactual: Text

    @property
    def queries(self) -> tuple[str, str]:
        return self.clean.query, self.counterfactual.query


Draw = Callable[[np.random.Generator], Pair | None]


@dataclass(frozen=True)
class PairGroup:
    """Pairs of one kind. draw: one more of them at random, or None where it finds none."""

    task: str
    condition: str
    template: int
    operator: str | None
    shots: int
    draw: Draw

    def pairs(self, seed: int, draws: int) -> Iterator[Pair]:
        """What these many draws find, each question once. They depend on the seed and the group's name, on no other group."""
        name = f"{seed}:{self.task}:{self.condition}:{self.template}:{self.operator}"
        rng = np.random.default_rng(int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()))
        seen: set[tuple[str, str]] = set()
        for _ in range(draws):
            if (pair := self.draw(rng)) and pair.queries not in seen:
                seen.add(pair.queries)
                yield pair


@dataclass(frozen=True)
class Exercise:
    """One template of an arithmetic task.

    write: a number in its words; shown: solved examples before every question; shots: further ones
    that are drawn; tries: draws for each of these.
    """

    task: str
    template: int
    wording: Wording
    write: Callable[[int], str]
    shown: Shown
    shots: int
    tries: int

    def group(self, condition: str, operation: Operation, others: Sequence[Operation]) -> PairGroup:
        """Pairs whose clean prompt asks `operation`, and whose counterfactual one of `others` where the operator varies."""
        choose = _same_operands(operation, others) if condition == "operator_varies" else _same_operation(operation, condition)

        def draw(rng: np.random.Generator) -> Pair | None:
            if not (chosen := choose(rng)):
                return None
            clean, counterfactual, usable = chosen
            if self._is_shown(clean) or self._is_shown(counterfactual):
                return None
            examples = self._examples(rng, (clean, counterfactual), usable)
            return None if examples is None else Pair(self._text(clean, examples), self._text(counterfactual, examples))

        shots = self.shown.count + self.shots
        return PairGroup(self.task, condition, self.template, operation.name, shots, draw)

    def _is_shown(self, exercise: Asked) -> bool:
        """Whether a shown example gives the answer away."""
        operation, operands = exercise
        return operation.answer(operands) in self.shown.answers

    def _examples(self, rng: np.random.Generator, queries: tuple[Asked, Asked], usable: np.ndarray) -> list[tuple[int, ...]] | None:
        """Operands of solved examples that both prompts share; none are a query's, or have its answer, or come twice."""
        taken = {tuple(sorted(operands)) for _, operands in queries}
        given_away = {operation.answer(operands) for operation, operands in queries}
        examples: list[tuple[int, ...]] = []
        for _ in range(self.shots * self.tries):
            if len(examples) == self.shots:
                break
            operands = tuple(usable[rng.integers(len(usable))].tolist())
            answers = {operation.answer(operands) for operation, _ in queries}
            if tuple(sorted(operands)) not in taken and not answers & given_away:
                examples.append(operands)
                taken.add(tuple(sorted(operands)))
        return examples if len(examples) == self.shots else None

    def _text(self, asked: Asked, examples: list[tuple[int, ...]]) -> Text:
        operation, operands = asked
        solved = [f"{self._fill(operation, some)[0]} {self.write(operation.answer(some))}\n" for some in examples]
        query, spans = self._fill(operation, operands)
        front = "".join([self.shown.text, *solved])
        return Text(front, query, self.write(operation.answer(operands)), spans)

    def _fill(self, operation: Operation, operands: tuple[int, ...]) -> tuple:
        return self.wording.fill(operation.words | dict(zip("xyz", map(self.write, operands), strict=False)))


def _same_operation(operation: Operation, condition: str) -> Choose:
    """Draws other operands, with another result or the same one."""
    pick = operation.counterparts.varied if condition == "result_varies" else operation.counterparts.fixed
    questions = operation.questions

    def choose(rng: np.random.Generator) -> Choice | None:
        if not (places := pick(rng)):
            return None
        clean, counterfactual = (tuple(questions[place].tolist()) for place in places)
        return (operation, clean), (operation, counterfactual), questions

    return choose


def _same_operands(operation: Operation, others: Sequence[Operation]) -> Choose:
    """Draws another operator, then operands on which the two differ."""
    shared = [(other, questions) for other in others if len(questions := operation.shared(other))]

    def choose(rng: np.random.Generator) -> Choice | None:
        if not shared:
            return None
        other, questions = shared[rng.integers(len(shared))]
        operands = tuple(questions[rng.integers(len(questions))].tolist())
        return (operation, operands), (other, operands), questions

    return choose


def retrieval(template: int, wording: Wording, things: list[str], numbers: np.ndarray) -> PairGroup:
    """Pairs with one text, in which the other thing is asked for."""

    def draw(rng: np.random.Generator) -> Pair | None:
        if len(numbers) < 2:
            return None
        x, y = (str(number) for number in rng.choice(numbers, 2, replace=False))
        a, b = (things[place] for place in rng.choice(len(things), 2, replace=False))
        values = {"x": x, "y": y, "a": a, "b": b}
        texts = [Text("", query, answer, spans) for q, answer in ((a, x), (b, y)) for query, spans in (wording.fill(values | {"q": q}),)]
        turned = rng.integers(2)
        return Pair(texts[turned], texts[1 - turned])

    return PairGroup("retrieval", "query_varies", template, None, 0, draw)


def entities(task: str, template: int, wording: Wording, facts: list[tuple[dict[str, str], str]]) -> PairGroup:
    """Pairs about two entities with different answers; facts: values of the placeholders, and the answer."""
    answers = np.unique([answer for _, answer in facts], return_inverse=True)[1]
    counterparts = Counterparts(answers, answers)

    def draw(rng: np.random.Generator) -> Pair | None:
        if not (places := counterparts.varied(rng)):
            return None
        chosen = (facts[place] for place in places)
        return Pair(*(Text("", query, answer, spans) for values, answer in chosen for query, spans in (wording.fill(values),)))

    return PairGroup(task, "entity_varies", template, None, 0, draw)
