"""The prompts of every task are right, and training never sees what is held out."""

import re

import numpy as np
import polars as pl
import pytest

from stages.corpus.prompts import CALCULATE, Corpus
from stages.corpus.settings import Tasks
from stages.lib.core.settings import check
from tests.corpus import corpora
from tests.corpus.corpora import numbers
from tests.micro import SHIPPED

TASKS = check(Tasks, SHIPPED["tasks"])


@pytest.fixture(scope="module")
def tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    return corpora.table("cells"), corpora.table("facts")


def corpus(tables: tuple[pl.DataFrame, pl.DataFrame], split: str | None) -> Corpus:
    return Corpus(TASKS, *tables, np.ones(len(tables[0])), split)


@pytest.mark.parametrize("task", ["arithmetic", "number_words"])
def test_two_operand_prompts_hold_their_operands_and_answer(tables, task: str):
    for p in corpus(tables, None).draw(task, 300, np.random.default_rng(0)):
        last = p.prompt.split("\n")[-1]
        assert numbers(last) == [p.op1, p.op2]
        assert numbers(p.answer) == [CALCULATE[p.operator](p.op1, p.op2)]


def test_solved_examples_are_right_and_of_the_same_operator(tables):
    few = TASKS.model_copy(update={"shots": [0.0, 0.0, 1.0]})
    for p in Corpus(few, *tables, np.ones(len(tables[0])), None).draw(
        "arithmetic", 200, np.random.default_rng(0)
    ):
        *examples, _ = p.prompt.split("\n")
        assert len(examples) == 2
        for example in examples:
            op1, op2, answer = numbers(example)
            assert answer == CALCULATE[p.operator](op1, op2)


def test_three_operand_prompts_are_the_29_compositions(tables):
    prompts = corpus(tables, None).draw("three_operands", 3000, np.random.default_rng(0))
    assert {p.template for p in prompts} == set(range(29))
    for p in prompts:
        assert eval(p.prompt.removesuffix("=").replace("/", "//")) == int(p.answer)


def test_retrieval_answers_what_is_asked_for(tables):
    for p in corpus(tables, None).draw("retrieval", 200, np.random.default_rng(0)):
        thing = re.search(r"How many (\w+)", p.prompt)[1]
        assert re.search(rf"{p.answer} {thing}", p.prompt)


def test_what_is_counted_is_followed_by_its_number(tables):
    for p in corpus(tables, None).draw("counting", 200, np.random.default_rng(0)):
        stated, _, thing = p.prompt.partition(" : ")
        quantities = {thing: number for number, thing in re.findall(r"(\d+) (\w+)", stated)}
        assert sorted(thing.split()) == sorted(quantities)
        assert p.answer == quantities[thing.split()[-1]]


def test_training_prompts_never_hold_out(tables):
    cells, _ = tables
    trainable = set(cells.filter(split="train").select("operator", "op1", "op2").rows())
    trained = corpus(tables, "train")
    for task in ("arithmetic", "number_words", "three_operands", "retrieval"):
        for p in trained.draw(task, 400, np.random.default_rng(1)):
            assert p.split == "train"
            if task in ("arithmetic", "number_words"):
                assert (p.operator, p.op1, p.op2) in trainable
                # solved examples give answers away, so they must not be held out either
                for example in p.prompt.split("\n")[:-1]:
                    op1, op2, _ = numbers(example)
                    assert (p.operator, op1, op2) in trainable
    everything = corpus(tables, None).draw("three_operands", 400, np.random.default_rng(1))
    assert {p.split for p in everything} == {"train", "held-out"}


def test_draws_depend_on_the_generator_alone(tables):
    first = corpus(tables, "train").draw("arithmetic", 50, np.random.default_rng([3, 4]))
    second = corpus(tables, "train").draw("arithmetic", 50, np.random.default_rng([3, 4]))
    assert first == second
