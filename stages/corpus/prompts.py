"""Prompts of every task outside the grid, rendered from the templates of the section `tasks`.

A corpus draws prompts; it does not know tokenizers, models or files. Tasks and templates follow Stolfo et al. (2023),
Sec. 3 and App. A: two operands, number words, three operands, number retrieval, facts.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
import polars as pl

from stages.corpus.settings import Tasks

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = ONES.split() + [tens if ones == 0 else f"{tens}-{ONES.split()[ones]}" for tens in TENS.split() for ones in range(10)]
CALCULATE: dict[str, Callable[[int, int], int | None]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y if x >= y else None,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x // y if y else None,
}
MOST_COUNTED = 6  # things in a prompt of `counting`
# Brackets make no difference to these pairs of operators: of 4 x 4 x 2 bracketed pairs, 29 compositions remain.
SAME_EITHER_WAY = {("add", "add"), ("multiply", "multiply"), ("add", "subtract")}


@dataclass(frozen=True)
class Prompt:
    """A prompt and what is known of it; `template` counts within the task, from 0."""

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
    """Draws prompts of each task.

    cells: columns operator, op1, op2, result, split; facts: columns relation, entity, object.
    weights: how often each cell is drawn, relative, one per row of `cells`; split: "train" to draw only prompts that
    our own subject may learn from, None for all.
    """

    def __init__(self, settings: Tasks, cells: pl.DataFrame, facts: pl.DataFrame, weights: np.ndarray, split: str | None):
        self.settings, self.split = settings, split
        self.facts = facts.rows()
        self.pools = {
            "arithmetic": _pool(cells, weights, cells["operator"].is_not_null(), split),
            "number_words": _pool(
                cells, weights, pl.max_horizontal(*(cells[c] for c in ("op1", "op2", "result"))) <= settings.largest_word_number, split
            ),
        }
        self.largest_answer = int(cells["result"].max())  # type: ignore[arg-type]
        self.compositions = [
            (first, second, left)
            for first, second, left in product(settings.operators, settings.operators, (True, False))
            if left or (first, second) not in SAME_EITHER_WAY
        ]

    def draw(self, task: str, count: int, rng: np.random.Generator) -> list[Prompt]:
        """`count` prompts of the task arithmetic, number_words, three_operands, retrieval, factual, or counting (to learn from)."""
        prompts = getattr(self, f"_{task}")(rng)
        return list(islice((p for p in prompts if self.split in (None, p.split)), count))

    def texts(self) -> Iterator[str]:
        """Texts that together hold every word (numbers aside) that a prompt or an answer can hold."""
        yield from NUMBER_WORDS[: self.settings.largest_word_number + 1]
        yield "( )"
        for words in self.settings.operators.values():
            yield f"{words.symbol} {words.verb} {words.noun}"
        for template in (*self.settings.arithmetic, *self.settings.retrieval, *self.settings.factual.values()):
            yield template.format_map(_Blank())
        yield from self.settings.retrieval_things
        for _, entity, answer in self.facts:
            yield f"{entity} {answer}"

    def _arithmetic(self, rng: np.random.Generator) -> Iterator[Prompt]:
        return self._two_operands("arithmetic", self.settings.arithmetic, str, rng)

    def _number_words(self, rng: np.random.Generator) -> Iterator[Prompt]:
        return self._two_operands("number_words", self.settings.arithmetic[:-1], NUMBER_WORDS.__getitem__, rng)

    def _two_operands(self, task: str, templates: list[str], write: Callable[[int], str], rng: np.random.Generator) -> Iterator[Prompt]:
        pool = self.pools[task]
        while True:
            template = int(rng.integers(len(templates)))
            operator, op1, op2, result, split = pool.draw(rng)
            texts = []
            for _ in range(rng.choice(len(self.settings.shots), p=self.settings.shots)):
                _, x, y, answer, _ = pool.draw(rng, operator)
                texts.append(f"{self._fill(templates[template], operator, write(x), write(y))} {write(answer)}")
            texts.append(self._fill(templates[template], operator, write(op1), write(op2)))
            yield Prompt(task, template, operator, op1, op2, None, "\n".join(texts), write(result), split)

    def _fill(self, template: str, operator: str, x: str, y: str) -> str:
        words = self.settings.operators[operator]  # type: ignore[index]
        return template.format(x=x, y=y, symbol=words.symbol, verb=words.verb, noun=words.noun)

    def _three_operands(self, rng: np.random.Generator) -> Iterator[Prompt]:
        symbol = {name: words.symbol for name, words in self.settings.operators.items()}
        while True:
            template = int(rng.integers(len(self.compositions)))
            first, second, left = self.compositions[template]
            x, y, z = map(int, rng.integers(1, self.settings.largest_operand_of_three + 1, 3))
            if left:
                inner = CALCULATE[first](x, y)
                result = None if inner is None else CALCULATE[second](inner, z)
                prompt = f"({x} {symbol[first]} {y}) {symbol[second]} {z} ="  # type: ignore[index]
            else:
                inner = CALCULATE[second](y, z)
                result = None if inner is None else CALCULATE[first](x, inner)
                prompt = f"{x} {symbol[first]} ({y} {symbol[second]} {z}) ="  # type: ignore[index]
            if result is not None and result <= self.largest_answer:
                yield Prompt("three_operands", template, f"{first} {second}", x, y, z, prompt, str(result), self._split_of(prompt))

    def _retrieval(self, rng: np.random.Generator) -> Iterator[Prompt]:
        templates, things = self.settings.retrieval, self.settings.retrieval_things
        while True:
            template = int(rng.integers(len(templates)))
            x, y = map(int, rng.choice(np.arange(2, self.largest_answer + 1), 2, replace=False))
            a, b = (things[i] for i in rng.choice(len(things), 2, replace=False))
            asked = int(rng.integers(2))
            prompt = templates[template].format(x=x, y=y, a=a, b=b, q=(a, b)[asked])
            yield Prompt("retrieval", template, None, x, y, None, prompt, str((x, y)[asked]), self._split_of(prompt))

    def _factual(self, rng: np.random.Generator) -> Iterator[Prompt]:
        relations = list(self.settings.factual)
        while True:
            relation, entity, answer = self.facts[rng.integers(len(self.facts))]
            prompt = self.settings.factual[relation].format(entity=entity)
            yield Prompt("factual", relations.index(relation), None, None, None, None, prompt, answer, "train")

    def _counting(self, rng: np.random.Generator) -> Iterator[Prompt]:
        """Numbers of things, and then things; each is to be followed by its number. A short curriculum for retrieval, of no study."""
        things = self.settings.retrieval_things
        while True:
            count = int(rng.integers(2, min(len(things), MOST_COUNTED) + 1))
            numbers = rng.choice(np.arange(2, self.largest_answer + 1), count, replace=False)
            counted = [things[i] for i in rng.choice(len(things), count, replace=False)]
            order = rng.permutation(count)
            stated = " ".join(f"{number} {thing}" for number, thing in zip(numbers, counted, strict=True))
            prompt = f"{stated} : {' '.join(counted[i] for i in order)}"
            yield Prompt("counting", 0, None, None, None, None, prompt, str(numbers[order[-1]]), self._split_of(prompt))

    def _split_of(self, prompt: str) -> str:
        digest = hashlib.md5(f"{self.settings.seed}:{prompt}".encode(), usedforsecurity=False).digest()
        return "held-out" if int.from_bytes(digest[:8], "big") % 100 < self.settings.held_out_percent else "train"


class _Blank(dict):
    """Fills every placeholder of a template with nothing."""

    def __missing__(self, key: str) -> str:
        return ""


@dataclass(frozen=True)
class _Pool:
    """Cells to draw from, with probabilities, whole and per operator."""

    rows: list[tuple[str, int, int, int, str]]
    cumulative: np.ndarray
    bounds: dict[str, tuple[float, float]]

    def draw(self, rng: np.random.Generator, operator: str | None = None) -> tuple[str, int, int, int, str]:
        low, high = self.bounds[operator] if operator else (0.0, self.cumulative[-1])
        return self.rows[np.searchsorted(self.cumulative, rng.uniform(low, high), side="right")]


def _pool(cells: pl.DataFrame, weights: np.ndarray, keep: pl.Series | pl.Expr, split: str | None) -> _Pool:
    kept = cells.with_columns(weight=pl.Series(weights)).filter(keep)
    if split:
        kept = kept.filter(pl.col("split") == split)
    kept = kept.sort("operator", "op1", "op2").with_columns(cumulative=pl.col("weight").cum_sum())
    ends = dict(kept.group_by("operator").agg(pl.col("cumulative").max()).sort("cumulative").rows())
    starts = [0.0, *ends.values()]
    bounds = {operator: (start, end) for start, (operator, end) in zip(starts, ends.items(), strict=False)}
    return _Pool(kept.select("operator", "op1", "op2", "result", "split").rows(), kept["cumulative"].to_numpy(), bounds)
