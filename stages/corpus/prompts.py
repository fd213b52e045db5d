"""Draw prompts of every task outside the grid, from the templates of the section `tasks`.

A corpus does not know tokenizers, models or files. Tasks and templates follow Stolfo et al. (2023),
Sec. 3 and App. A: two operands, number words, three operands, number retrieval and facts.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, product

import numpy as np
import polars as pl

from stages.corpus.settings import Tasks

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
ONES, TENS = _ONES.split(), _TENS.split()
COMPOUNDS = map("-".join, product(TENS, ONES[:10]))
NUMBER_WORDS = [*ONES, *(word.removesuffix("-zero") for word in COMPOUNDS)]
CALCULATE: dict[str, Callable[[int, int], int | None]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y if x >= y else None,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x // y if y else None,
}
MOST_COUNTED = 6  # things in a prompt of `counting`
# Brackets make no difference to these pairs of operators: of 4 x 4 x 2 bracketed pairs, 29
# compositions remain.
SAME_EITHER_WAY = {("add", "add"), ("multiply", "multiply"), ("add", "subtract")}


@dataclass(frozen=True)
class Prompt:
    """Hold a prompt and what is known about it; `template` counts within the task, from 0."""

    task: str
    template: int
    operator: str | None
    op1: int | None
    op2: int | None
    op3: int | None
    prompt: str
    answer: str
    split: str


class Corpus:
    """Draw prompts of each task.

    cells: columns operator, op1, op2, result, split; facts: columns relation, entity, object.
    weights: how often each row of `cells` is drawn, relative to others; split: "train" to draw only
    prompts that our own models may learn from, None for all.
    """

    def __init__(
        self,
        settings: Tasks,
        cells: pl.DataFrame,
        facts: pl.DataFrame,
        weights: np.ndarray,
        split: str | None,
    ):
        self.settings, self.split = settings, split
        self.facts = facts.rows()
        largest = pl.max_horizontal("op1", "op2", "result")
        has_words = largest <= settings.largest_word_number
        self.pools = {
            "arithmetic": _pool(cells, weights, pl.lit(True), split),
            "number_words": _pool(cells, weights, has_words, split),
        }
        self.largest_answer = int(cells["result"].max())  # type: ignore[arg-type]
        self.compositions = [
            (first, second, left)
            for first, second, left in product(
                settings.operators, settings.operators, (True, False)
            )
            if left or (first, second) not in SAME_EITHER_WAY
        ]

    def draw(self, task: str, count: int, rng: np.random.Generator) -> list[Prompt]:
        """Return `count` prompts of a task.

        task: arithmetic, number_words, three_operands, retrieval, factual, or counting, which is
        for training alone.
        """
        prompts = getattr(self, f"_{task}")(rng)
        return list(islice((p for p in prompts if self.split in (None, p.split)), count))

    def texts(self) -> Iterator[str]:
        """Yield texts that together hold every word of prompts and answers, apart from numbers."""
        yield from NUMBER_WORDS[: self.settings.largest_word_number + 1]
        yield "( )"
        for words in self.settings.operators.values():
            yield f"{words.symbol} {words.verb} {words.noun}"
        for template in (
            *self.settings.arithmetic,
            *self.settings.retrieval,
            *self.settings.factual.values(),
        ):
            yield template.format_map(_Blank())
        yield from self.settings.retrieval_things
        for _, entity, answer in self.facts:
            yield f"{entity} {answer}"

    def _arithmetic(self, rng: np.random.Generator) -> Iterator[Prompt]:
        return self._two_operands("arithmetic", self.settings.arithmetic, str, rng)

    def _number_words(self, rng: np.random.Generator) -> Iterator[Prompt]:
        templates = self.settings.arithmetic[:-1]
        return self._two_operands("number_words", templates, NUMBER_WORDS.__getitem__, rng)

    def _two_operands(
        self,
        task: str,
        templates: list[str],
        write: Callable[[int], str],
        rng: np.random.Generator,
    ) -> Iterator[Prompt]:
        """Yield prompts with two operands; write: how numbers are written."""
        pool = self.pools[task]
        while True:
            number = int(rng.integers(len(templates)))
            template = templates[number]
            operator, op1, op2, result, split = pool.draw(rng)
            texts = []
            for _ in range(rng.choice(len(self.settings.shots), p=self.settings.shots)):
                _, x, y, answer, _ = pool.draw(rng, operator)
                example = self._fill(template, operator, write(x), write(y))
                texts.append(f"{example} {write(answer)}")
            texts.append(self._fill(template, operator, write(op1), write(op2)))
            prompt = "\n".join(texts)
            yield Prompt(task, number, operator, op1, op2, None, prompt, write(result), split)

    def _fill(self, template: str, operator: str, x: str, y: str) -> str:
        words = self.settings.operators[operator]  # type: ignore[index]
        return template.format(x=x, y=y, symbol=words.symbol, verb=words.verb, noun=words.noun)

    def _three_operands(self, rng: np.random.Generator) -> Iterator[Prompt]:
        while True:
            number = int(rng.integers(len(self.compositions)))
            first, second, left = self.compositions[number]
            x, y, z = map(int, rng.integers(1, self.settings.largest_operand_of_three + 1, 3))
            result = _composed(first, second, left, (x, y, z))
            if result is None or result > self.largest_answer:
                continue
            signs = [self.settings.operators[operator].symbol for operator in (first, second)]
            template = "({x} {} {y}) {} {z} =" if left else "{x} {} ({y} {} {z}) ="
            prompt = template.format(*signs, x=x, y=y, z=z)
            operators, split = f"{first} {second}", self._split_of(prompt)
            task = "three_operands"
            yield Prompt(task, number, operators, x, y, z, prompt, str(result), split)

    def _retrieval(self, rng: np.random.Generator) -> Iterator[Prompt]:
        templates, things = self.settings.retrieval, self.settings.retrieval_things
        while True:
            template = int(rng.integers(len(templates)))
            numbers = rng.choice(np.arange(2, self.largest_answer + 1), 2, replace=False)
            x, y = map(int, numbers)
            a, b = (things[i] for i in rng.choice(len(things), 2, replace=False))
            thing, answer = ((a, x), (b, y))[int(rng.integers(2))]
            prompt = templates[template].format(x=x, y=y, a=a, b=b, q=thing)
            split = self._split_of(prompt)
            yield Prompt("retrieval", template, None, x, y, None, prompt, str(answer), split)

    def _factual(self, rng: np.random.Generator) -> Iterator[Prompt]:
        relations = list(self.settings.factual)
        numbers = (None, None, None, None)
        while True:
            relation, entity, answer = self.facts[rng.integers(len(self.facts))]
            prompt = self.settings.factual[relation].format(entity=entity)
            template = relations.index(relation)
            yield Prompt("factual", template, *numbers, prompt, answer, "train")

    def _counting(self, rng: np.random.Generator) -> Iterator[Prompt]:
        """Yield numbers of things, then the things; the answer is the number of the last thing.

        This is a short curriculum for retrieval, from neither study.
        """
        things = self.settings.retrieval_things
        nothing = (None, None, None, None)
        while True:
            count = int(rng.integers(2, min(len(things), MOST_COUNTED) + 1))
            numbers = rng.choice(np.arange(2, self.largest_answer + 1), count, replace=False)
            counted = [things[i] for i in rng.choice(len(things), count, replace=False)]
            order = rng.permutation(count)
            stated = " ".join(map("{} {}".format, numbers, counted))
            prompt = f"{stated} : {' '.join(counted[i] for i in order)}"
            answer = str(numbers[order[-1]])
            yield Prompt("counting", 0, *nothing, prompt, answer, self._split_of(prompt))

    def _split_of(self, prompt: str) -> str:
        text = f"{self.settings.seed}:{prompt}"
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        is_held_out = int.from_bytes(digest[:8], "big") % 100 < self.settings.held_out_percent
        return "held-out" if is_held_out else "train"


def _composed(first: str, second: str, left: bool, operands: tuple[int, int, int]) -> int | None:
    """Return (x first y) second z, or x first (y second z); None if a step has no answer."""
    x, y, z = operands
    inner = CALCULATE[first](x, y) if left else CALCULATE[second](y, z)
    if inner is None:
        return None
    return CALCULATE[second](inner, z) if left else CALCULATE[first](x, inner)


class _Blank(dict):
    """Fill every placeholder of a template with nothing."""

    def __missing__(self, key: str) -> str:
        return ""


Cell = tuple[str, int, int, int, str]  # operator, op1, op2, result, split


@dataclass(frozen=True)
class _Pool:
    """Hold cells to draw from.

    cumulative: (cells,) cumulative weights; bounds: operator -> its first and last of these.
    """

    rows: list[Cell]
    cumulative: np.ndarray
    bounds: dict[str, tuple[float, float]]

    def draw(self, rng: np.random.Generator, operator: str | None = None) -> Cell:
        low, high = self.bounds[operator] if operator else (0.0, self.cumulative[-1])
        return self.rows[np.searchsorted(self.cumulative, rng.uniform(low, high), side="right")]


def _pool(cells: pl.DataFrame, weights: np.ndarray, which: pl.Expr, split: str | None) -> _Pool:
    """Return the cells for which the expression holds, of one split or of all."""
    rows = cells.with_columns(weight=pl.Series(weights)).filter(which)
    if split:
        rows = rows.filter(split=split)
    rows = rows.sort("operator", "op1", "op2")
    rows = rows.with_columns(cumulative=pl.col("weight").cum_sum())
    ends = dict(rows.group_by("operator").agg(pl.max("cumulative")).sort("cumulative").rows())
    bounds = dict(zip(ends, pairwise([0.0, *ends.values()]), strict=True))
    drawn = rows.select("operator", "op1", "op2", "result", "split").rows()
    return _Pool(drawn, rows["cumulative"].to_numpy(), bounds)
