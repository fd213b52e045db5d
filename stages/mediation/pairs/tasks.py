"""Turn the tasks of causal mediation into groups of prompt pairs.

The tasks are those of the section `tasks`, and a user's own.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from stages.corpus.prompts import NUMBER_WORDS
from stages.corpus.settings import Tasks
from stages.lib.core.vocabulary import ARITHMETIC_CONDITIONS, Arithmetic
from stages.mediation.pairs.examples import Shown, SolvedExample, shown
from stages.mediation.pairs.groups import Exercise, PairGroup, entities, retrieval
from stages.mediation.pairs.operators import compositions, operations
from stages.mediation.pairs.own_tasks import Fact, fillings
from stages.mediation.pairs.templates import Wording
from stages.mediation.settings import Mediation

Known = Callable[[list[str]], set[str]]  # keeps the answers that a tokenizer has as one token


@dataclass(frozen=True)
class FactualTemplate:
    """A template about entities, and the facts that fill it."""

    task: str
    number: int
    template: str
    facts: list[Fact]


class PairGroups:
    """All groups of pairs for one model.

    Raises ParamsError on an incomplete template or file.
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
        """Read the tasks' files.

        cells: columns operator, op1, op2 and result, of operands in the model's range
        facts: columns relation, entity and object
        operators: those that the model knows
        examples: solved examples of the model's own template, shown before each calculation
        """
        self.settings, self.tasks, self.cells, self.operators = settings, tasks, cells, operators
        self.examples = examples
        largest = int(cells["op1"].max() or 0)  # type: ignore[arg-type]
        self.largest = min(settings.operands[1], largest)
        self.factual = []
        for number, (relation, template) in enumerate(tasks.factual.items()):
            own = _facts(facts.filter(relation=relation))
            self.factual.append(FactualTemplate("factual", number, template, own))
        for name, tables in settings.tables.items():
            for number, table in enumerate(tables):
                own = fillings(table, f"mediation.tables.{name}.{number}")
                self.factual.append(FactualTemplate(name, number, table.template, own))

    def groups(self, known: Known) -> list[PairGroup]:
        """Return the groups, with questions whose answers `known` keeps."""
        largest = int(self.cells["result"].max() or 0)  # type: ignore[arg-type]
        smallest = self.settings.smallest_result
        numbers = known(list(map(str, range(largest + 1))))
        words = known(NUMBER_WORDS[: self.tasks.largest_word_number + 1])
        results = [number for number in range(smallest, largest + 1) if str(number) in numbers]
        worded = []
        for number, word in enumerate(NUMBER_WORDS):
            if number >= smallest and word in words:
                worded.append(number)
        in_words = self.tasks.arithmetic[:-1]  # the last template is in symbols
        write_word = NUMBER_WORDS.__getitem__
        return [
            *self._two_operands("arithmetic", self.tasks.arithmetic, str, results),
            *self._two_operands("number_words", in_words, write_word, worded),
            *self._three_operands(results),
            *self._retrieval(numbers),
            *self._entities(known),
        ]

    def _two_operands(
        self,
        task: Arithmetic,
        templates: list[str],
        write: Callable[[int], str],
        results: list[int],
    ) -> Iterator[PairGroup]:
        smallest, largest = self.settings.operands[0], self.largest
        if task == "number_words":
            largest = min(largest, self.tasks.largest_word_number)
        in_range = pl.all_horizontal(pl.col("op1", "op2").is_between(smallest, largest))
        cells = self.cells.filter(in_range, pl.col("result").is_in(results))
        words = self.tasks.operators
        known = operations(cells, {name: words[name] for name in words if name in self.operators})
        kinds = product(ARITHMETIC_CONDITIONS, enumerate(templates), known)
        for condition, (number, template), operation in kinds:
            others = [other for other in known if other is not operation]
            exercise = self._exercise(task, number, template, write)
            yield exercise.group(condition, operation, others)

    def _three_operands(self, results: list[int]) -> Iterator[PairGroup]:
        largest = min(self.largest, self.tasks.largest_operand_of_three)
        operands = range(self.settings.operands[0], largest + 1)
        composed = compositions(self.tasks.operators, operands, results)
        known = []
        for number, key in enumerate(composed):
            if {*key[:2]} <= {*self.operators}:
                known.append((number, key))
        for condition, (number, key) in product(ARITHMETIC_CONDITIONS, known):
            *_, left = key
            bracketed = self.settings.bracketed
            template = bracketed.left if left else bracketed.right
            others = []
            for other_number, other_key in known:
                if other_key[2] == left and other_number != number:
                    others.append(composed[other_key])
            exercise = self._exercise("three_operands", number, template, str)
            yield exercise.group(condition, composed[key], others)

    def _exercise(
        self, task: Arithmetic, number: int, template: str, write: Callable[[int], str]
    ) -> Exercise:
        wording = Wording(template)
        before = self._shown(task, wording, write)
        shots = 0 if before.count else self.settings.shots[task]
        return Exercise(task, number, wording, write, before, shots, self.settings.draws_per_pair)

    def _shown(self, task: Arithmetic, wording: Wording, write: Callable[[int], str]) -> Shown:
        """Word the model's own examples as the template does; before three operands, in symbols."""
        examples = self.examples
        if task == "number_words":
            most = self.tasks.largest_word_number
            examples = [e for e in examples if max(e.op1, e.op2, e.answer) <= most]
        if task == "three_operands":
            wording = Wording(self.tasks.arithmetic[-1])
        return shown(examples, wording, self.tasks.operators, write)

    def _retrieval(self, known: set[str]) -> Iterator[PairGroup]:
        smallest = max(self.settings.operands[0], 2)  # the templates use plurals
        numbers = [number for number in range(smallest, self.largest + 1) if str(number) in known]
        for number, template in enumerate(self.tasks.retrieval):
            things = self.tasks.retrieval_things
            yield retrieval(number, Wording(template), things, np.array(numbers))

    def _entities(self, known: Known) -> Iterator[PairGroup]:
        for filled in self.factual:
            answers = known([answer for _, answer in filled.facts])
            facts = [fact for fact in filled.facts if fact[1] in answers]
            yield entities(filled.task, filled.number, Wording(filled.template), facts)


def _facts(table: pl.DataFrame) -> list[Fact]:
    rows = table.sort("entity").select("entity", "object").rows()
    return [({"entity": entity}, answer) for entity, answer in rows]
