"""Draw pairs of prompts that differ in a known way, for one task, template and operator at a time.

A group of pairs knows no tokenizer. Its caller keeps the pairs that suit one, and draws more.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stages.mediation.pairs.draws import Counterparts
from stages.mediation.pairs.examples import Shown
from stages.mediation.pairs.operators import Operation
from stages.mediation.pairs.templates import Span, Text, Wording

Operands = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """A clean prompt and its counterfactual, each with its answer."""

    clean: Text
    counterfactual: Text

    @property
    def queries(self) -> tuple[str, str]:
        """Both prompts, without solved examples."""
        return self.clean.query, self.counterfactual.query


Draw = Callable[[np.random.Generator], Pair | None]


@dataclass(frozen=True)
class PairGroup:
    """Pairs of one kind. draw: one more random pair, or None if the draw failed."""

    task: str
    condition: str
    template: int
    operator: str | None
    shots: int
    draw: Draw

    def pairs(self, seed: int, draws: int) -> Iterator[Pair]:
        """Yield the distinct pairs among this many draws.

        They depend on the seed and on the group's name, not on other groups.
        """
        parts = (seed, self.task, self.condition, self.template, self.operator)
        name = ":".join(map(str, parts))
        digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        seen: set[tuple[str, str]] = set()
        for _ in range(draws):
            pair = self.draw(rng)
            if pair and pair.queries not in seen:
                seen.add(pair.queries)
                yield pair


@dataclass(frozen=True, eq=False)
class Calculation:
    """An operation, and the operands to apply it to."""

    operation: Operation
    operands: Operands

    @property
    def answer(self) -> int:
        """The answer."""
        return self.operation.answer(self.operands)


@dataclass(frozen=True, eq=False)
class CalculationPair:
    """The clean and the counterfactual question.

    usable: (questions, operands) all operands to which both operations can be applied.
    """

    clean: Calculation
    counterfactual: Calculation
    usable: np.ndarray

    @property
    def both(self) -> tuple[Calculation, Calculation]:
        """The clean question, then the counterfactual one."""
        return self.clean, self.counterfactual


DrawCalculations = Callable[[np.random.Generator], CalculationPair | None]


@dataclass(frozen=True)
class Exercise:
    """One template of an arithmetic task.

    write: a number in the template's words
    shown: solved examples before every question
    shots: number of further solved examples, which are drawn
    tries: draws for each of these
    """

    task: str
    template: int
    wording: Wording
    write: Callable[[int], str]
    shown: Shown
    shots: int
    tries: int

    def group(self, condition: str, operation: Operation, others: Sequence[Operation]) -> PairGroup:
        """Return the pairs whose clean prompt applies `operation`.

        The counterfactual prompt applies one of `others` if the operator varies, otherwise the
        same operation.
        """
        varies = condition == "operator_varies"
        draw_calculations = (
            _same_operands(operation, others) if varies else _same_operation(operation, condition)
        )

        def draw(rng: np.random.Generator) -> Pair | None:
            questions = draw_calculations(rng)
            if questions is None or self._gives_away(questions):
                return None
            examples = self._draw_examples(rng, questions)
            if examples is None:
                return None
            return Pair(*(self._text(question, examples) for question in questions.both))

        shots = self.shown.count + self.shots
        return PairGroup(self.task, condition, self.template, operation.name, shots, draw)

    def _gives_away(self, questions: CalculationPair) -> bool:
        """Return whether a shown example has the answer of either question."""
        return any(question.answer in self.shown.answers for question in questions.both)

    def _draw_examples(
        self, rng: np.random.Generator, questions: CalculationPair
    ) -> list[Operands] | None:
        """Draw operands of the solved examples that both prompts share; None if draws run out.

        No example repeats a question or another example, and none has the answer of a question.
        """
        taken = {tuple(sorted(question.operands)) for question in questions.both}
        given_away = {question.answer for question in questions.both}
        usable = questions.usable
        examples: list[Operands] = []
        for _ in range(self.shots * self.tries):
            if len(examples) == self.shots:
                break
            operands = tuple(usable[rng.integers(len(usable))].tolist())
            answers = {question.operation.answer(operands) for question in questions.both}
            unordered = tuple(sorted(operands))
            if unordered not in taken and not answers & given_away:
                examples.append(operands)
                taken.add(unordered)
        return examples if len(examples) == self.shots else None

    def _text(self, question: Calculation, examples: list[Operands]) -> Text:
        """Word a question after its solved examples."""
        front = self.shown.text
        for operands in examples:
            solved, _ = self._fill(question.operation, operands)
            front += f"{solved} {self.write(question.operation.answer(operands))}\n"
        query, spans = self._fill(question.operation, question.operands)
        return Text(front, query, self.write(question.answer), spans)

    def _fill(self, operation: Operation, operands: Operands) -> tuple[str, tuple[Span, ...]]:
        numbers = dict(zip("xyz", map(self.write, operands), strict=False))
        return self.wording.fill(operation.words | numbers)


def _same_operation(operation: Operation, condition: str) -> DrawCalculations:
    """Return draws of two questions of one operation, with different results or the same one."""
    counterparts, questions = operation.counterparts, operation.questions
    pick = counterparts.varied if condition == "result_varies" else counterparts.fixed

    def draw(rng: np.random.Generator) -> CalculationPair | None:
        picked = pick(rng)
        if picked is None:
            return None
        clean, counterfactual = (tuple(questions[number].tolist()) for number in picked)
        return CalculationPair(
            Calculation(operation, clean), Calculation(operation, counterfactual), questions
        )

    return draw


def _same_operands(operation: Operation, others: Sequence[Operation]) -> DrawCalculations:
    """Return draws of another operation, and of operands on which the two differ."""
    shared = []
    for other in others:
        questions = operation.shared(other)
        if len(questions):
            shared.append((other, questions))

    def draw(rng: np.random.Generator) -> CalculationPair | None:
        if not shared:
            return None
        other, questions = shared[rng.integers(len(shared))]
        operands = tuple(questions[rng.integers(len(questions))].tolist())
        return CalculationPair(
            Calculation(operation, operands), Calculation(other, operands), questions
        )

    return draw


def retrieval(template: int, wording: Wording, things: list[str], numbers: np.ndarray) -> PairGroup:
    """Return pairs with one text about two things, each of which asks for the number of one."""

    def draw(rng: np.random.Generator) -> Pair | None:
        if len(numbers) < 2:
            return None
        x, y = map(str, rng.choice(numbers, 2, replace=False))
        a, b = (things[number] for number in rng.choice(len(things), 2, replace=False))
        values = {"x": x, "y": y, "a": a, "b": b}
        texts = [
            _fill(wording, values | {"q": a}, x),
            _fill(wording, values | {"q": b}, y),
        ]
        first = rng.integers(2)
        return Pair(texts[first], texts[1 - first])

    return PairGroup("retrieval", "query_varies", template, None, 0, draw)


def entities(
    task: str, template: int, wording: Wording, facts: list[tuple[dict[str, str], str]]
) -> PairGroup:
    """Return pairs about two entities with different answers.

    facts: values of the placeholders, and the answer
    """
    answers = np.unique([answer for _, answer in facts], return_inverse=True)[1]
    counterparts = Counterparts(answers, answers)

    def draw(rng: np.random.Generator) -> Pair | None:
        picked = counterparts.varied(rng)
        if picked is None:
            return None
        return Pair(*(_fill(wording, *facts[number]) for number in picked))

    return PairGroup(task, "entity_varies", template, None, 0, draw)


def _fill(wording: Wording, values: dict[str, str], answer: str) -> Text:
    query, spans = wording.fill(values)
    return Text("", query, answer, spans)
