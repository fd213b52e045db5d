"""Facts of the world are unambiguous, and prompts for pretrained models hold small operands."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.corpus import evaluation, real_tasks
from stages.corpus.prompts import CALCULATE, Corpus, Prompt
from stages.corpus.settings import RealTasks, Tasks
from stages.lib.core.settings import ParamsError, check
from tests.corpus import corpora
from tests.corpus.corpora import numbers
from tests.micro import ROOT, SHIPPED

TASKS = check(Tasks, SHIPPED["tasks"])
REAL = check(RealTasks, SHIPPED["real_tasks"] | {"evaluation_prompts": 200})


@pytest.fixture(scope="module")
def cells() -> pl.DataFrame:
    return corpora.table("cells")


@pytest.fixture(scope="module")
def facts() -> pl.DataFrame:
    return real_tasks.real_facts(ROOT / real_tasks.FACTS)


@pytest.fixture(scope="module")
def prompts(cells: pl.DataFrame, facts: pl.DataFrame) -> dict[str, list[Prompt]]:
    small = cells.filter(pl.max_horizontal("op1", "op2") <= REAL.largest_operand)
    return real_tasks.real_prompts(TASKS, REAL, small, facts)


def test_facts_have_one_answer_each_in_both_directions(facts: pl.DataFrame):
    counts = Counter(facts["relation"])
    assert set(counts) == set(TASKS.factual)
    assert min(counts.values()) >= 40
    assert not facts.select("relation", "entity").is_duplicated().any()
    countries = dict(facts.filter(relation="capital_of").select("entity", "object").rows())
    for relation, entity, answer in facts.rows():
        assert re.fullmatch(r"[A-Za-z]+", answer)  # a single word
        assert re.fullmatch(r"\S+( \S+)*", entity)
        assert answer not in TASKS.factual[relation].format(entity=entity)
        if relation == "capital":
            assert countries[answer] == entity


def test_a_fact_with_two_answers_is_refused(tmp_path: Path):
    path = tmp_path / "facts.csv"
    path.write_text("relation,entity,object\nkind,A pine,tree\nkind,A pine,plant\n")
    with pytest.raises(
        ParamsError, match=r"two rows have relation kind and entity 'A pine'; .* remove one"
    ):
        real_tasks.real_facts(path)


def test_sums_are_small_and_follow_solved_examples(prompts: dict[str, list[Prompt]]):
    for prompt in [*prompts["arithmetic"], *prompts["number_words"]]:
        lines = f"{prompt.prompt} {prompt.answer}".split("\n")
        assert len(lines) == REAL.examples + 1
        for line in lines:
            op1, op2, answer = numbers(line)
            assert max(op1, op2) <= REAL.largest_operand
            assert answer == CALCULATE[prompt.operator](op1, op2)
        assert (op1, op2) == (prompt.op1, prompt.op2)
    for prompt in prompts["three_operands"]:
        *solved, question = prompt.prompt.split("\n")
        assert len(solved) == REAL.examples
        for line in [*solved, f"{question} {prompt.answer}"]:
            calculation, answer = line.split(" = ")
            assert eval(calculation.replace("/", "//")) == int(answer)


def test_every_prompt_has_a_number_of_its_own_and_no_split(
    cells: pl.DataFrame,
    facts: pl.DataFrame,
    prompts: dict[str, list[Prompt]],
):
    ours = Corpus(TASKS, cells, facts, np.ones(len(cells)), split=None)
    both = [
        evaluation.table(evaluation.drawn(ours, TASKS)),
        evaluation.table(prompts, first=TASKS.evaluation_prompts),
    ]
    assert both[0].schema == both[1].schema
    assert not pl.concat(both).select("task", "prompt_number").is_duplicated().any()
    assert set(both[0]["split"]) == {"train", "held-out"}
    assert set(both[1]["split"]) == {"all"}
    assert not both[1].select("task", "prompt").is_duplicated().any()
    counts = Counter(both[1]["task"])
    assert counts["arithmetic"] == counts["retrieval"] == REAL.evaluation_prompts
