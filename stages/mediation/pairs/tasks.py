"""The tasks of causal mediation, as groups of prompt pairs: those of the section `tasks`, and a user's own."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product

import numpy as np
import polars as pl

from stages.corpus.prompts import NUMBER_WORDS
from stages.corpus.settings import Tasks
from stages.lib.core.words import ARITHMETIC_CONDITIONS, Arithmetic
from stages.mediation.pairs.examples import Shown, SolvedExample, shown
from stages.mediation.pairs.groups import Exercise, PairGroup, entities, retrieval
from stages.mediation.pairs.operators import compositions, operations
from stages.mediation.pairs.own_tasks import Fact, fillings
from stages.mediation.pairs.templates import Wording
from stages.mediation.settings import Mediation


class Mediating:
    """Every group that a subject can be asked. Raises ParamsError on a template or a file that lacks something.

    cells: columns operator, op1, op2, result, of operands that the model is asked; facts: columns
    relation, entity, object; operators: those the model knows; examples: solved examples of the
    model's own template, which stand before each question that asks for a calculation.
    """

    def __init__(
        self,
        settings: Mediation,
        tasks: Tasks,
        cells: pl.DataFrame,
        facts: pl.DataFrame,
        operators: Collection[str],
        examples: Sequence[SolvedExample] = (),
    ):
        self.settings, self.tasks, self.cells, self.operators = settings, tasks, cells, operators
        self.examples = examples
        largest = int(cells["op1"].max() or 0)  # type: ignore[arg-type]
        self.largest = min(settings.operands[1], largest)
        filled = [(relation, template, facts.filter(relation=relation)) for relation, template in tasks.factual.items()]
        self.facts: dict[str, list[tuple[str, list[Fact]]]] = {"factual": [(template, _facts(of)) for _, template, of in filled]}
        for name, tables in settings.tables.items():
            self.facts[name] = [(table.template, fillings(table, f"mediation.tables.{name}.{i}")) for i, table in enumerate(tables)]

    def groups(self, known: Callable[[list[str]], set[str]]) -> list[PairGroup]:
        """All of them, of questions whose answers are known; known: picks these."""
        largest = int(self.cells["result"].max() or 0)  # type: ignore[arg-type]
        numbers, words = known(list(map(str, range(largest + 1)))), known(NUMBER_WORDS[: self.tasks.largest_word_number + 1])
        written = [number for number in range(self.settings.smallest_result, largest + 1) if str(number) in numbers]
        worded = [number for number, word in enumerate(NUMBER_WORDS) if number >= self.settings.smallest_result and word in words]
        return [
            *self._two_operands("arithmetic", self.tasks.arithmetic, str, written),
            *self._two_operands("number_words", self.tasks.arithmetic[:-1], NUMBER_WORDS.__getitem__, worded),  # the last one is symbols
            *self._three_operands(written),
            *self._retrieval(numbers),
            *self._entities(known),
        ]

    def _two_operands(self, task: Arithmetic, texts: list[str], write: Callable[[int], str], results: list[int]) -> Iterator[PairGroup]:
        smallest, largest = self.settings.operands[0], self.largest
        largest = min(largest, self.tasks.largest_word_number) if task == "number_words" else largest
        within = [pl.col(name).is_between(smallest, largest) for name in ("op1", "op2")]
        words = {name: of for name, of in self.tasks.operators.items() if name in self.operators}
        made = operations(self.cells.filter(*within, pl.col("result").is_in(results)), words)
        for condition, (number, text), operation in product(ARITHMETIC_CONDITIONS, enumerate(texts), made):
            others = [other for other in made if other is not operation]
            yield self._exercise(task, number, text, write).group(condition, operation, others)

    def _three_operands(self, results: list[int]) -> Iterator[PairGroup]:
        largest = min(self.largest, self.tasks.largest_operand_of_three)
        operands = range(self.settings.operands[0], largest + 1)
        composed = compositions(self.tasks.operators, operands, results)
        asked = [(number, key) for number, key in enumerate(composed) if {*key[:2]} <= {*self.operators}]
        for condition, (number, (first, second, left)) in product(ARITHMETIC_CONDITIONS, asked):
            text = self.settings.bracketed.left if left else self.settings.bracketed.right
            others = [composed[key] for other, key in asked if key[2] == left and other != number]
            yield self._exercise("three_operands", number, text, str).group(condition, composed[first, second, left], others)

    def _exercise(self, task: Arithmetic, template: int, text: str, write: Callable[[int], str]) -> Exercise:
        wording = Wording(text)
        before = self._shown(task, wording, write)
        shots = 0 if before.count else self.settings.shots[task]
        return Exercise(task, template, wording, write, before, shots, self.settings.draws_per_pair)

    def _shown(self, task: Arithmetic, wording: Wording, write: Callable[[int], str]) -> Shown:
        """The model's own examples in the words of a template; before three operands, in symbols."""
        examples = self.examples
        if task == "number_words":
            most = self.tasks.largest_word_number
            examples = [e for e in examples if max(e.op1, e.op2, e.answer) <= most]
        if task == "three_operands":
            wording = Wording(self.tasks.arithmetic[-1])
        return shown(examples, wording, self.tasks.operators, write)

    def _retrieval(self, known: set[str]) -> Iterator[PairGroup]:
        smallest = max(self.settings.operands[0], 2)  # one is not said in the plural
        numbers = [number for number in range(smallest, self.largest + 1) if str(number) in known]
        for template, text in enumerate(self.tasks.retrieval):
            yield retrieval(template, Wording(text), self.tasks.retrieval_things, np.array(numbers))

    def _entities(self, known: Callable[[list[str]], set[str]]) -> Iterator[PairGroup]:
        for task, filled in self.facts.items():
            for template, (text, facts) in enumerate(filled):
                answers = known([answer for _, answer in facts])
                yield entities(task, template, Wording(text), [fact for fact in facts if fact[1] in answers])


def _facts(table: pl.DataFrame) -> list[Fact]:
    return [({"entity": entity}, answer) for entity, answer in table.sort("entity").select("entity", "object").rows()]
