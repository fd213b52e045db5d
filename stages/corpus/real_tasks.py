"""Prompts for models that were not trained here: facts of the world, and sums of small numbers.

`tasks` asks for invented facts, which only our own models learned. A pretrained model is asked for
the facts in real_facts.csv, which is curated by hand. Its sums have small operands, which most
tokenizers write in one or two tokens, and follow solved examples, without which a base model
rarely answers in digits.

Reads data/corpus/cells.parquet; writes data/corpus/real_facts.parquet and
data/corpus/real_tasks.parquet.

Table real_facts: facts of the world that pretrained models are asked for
    relation  VARCHAR  capital, capital_of, kind, born_in, native_language or died_in
    entity    VARCHAR  country, city, thing or person that the question is about
    object    VARCHAR  the answer

Table real_tasks: prompts of the same tasks as in `tasks`, for models that were not trained here
    task           VARCHAR  arithmetic, number_words, three_operands, retrieval or factual
    prompt_number  INTEGER  within the task, from tasks.evaluation_prompts: no number is in `tasks`
    template       INTEGER  within the task, from 0; the relation of a fact
    operator       VARCHAR  of arithmetic and number_words; of three_operands both, in reading
                            order; else null
    op1            INTEGER  first number of the prompt, null for facts
    op2            INTEGER  second number of the prompt, null for facts
    op3            INTEGER  third operand, null except for three_operands
    prompt         VARCHAR  what the model reads, solved examples included
    answer         VARCHAR  what should follow
    split          VARCHAR  all: no prompt was held out from a training here
"""

from dataclasses import replace
from pathlib import Path

import polars as pl

from stages.corpus import evaluation
from stages.corpus.prompts import Corpus, Prompt
from stages.corpus.settings import RealTasks, Tasks
from stages.lib.core.settings import ParamsError, load
from stages.lib.core.tables import read_table, write_table

FACTS = Path("stages/corpus/real_facts.csv")
COLUMNS = ["relation", "entity", "object"]


def main() -> None:
    settings, real = load(Tasks), load(RealTasks)
    facts = real_facts(FACTS)
    write_table(facts, Path("data/corpus/real_facts.parquet"))
    cells = read_table("data/corpus/cells.parquet")
    small = cells.filter(pl.max_horizontal("op1", "op2") <= real.largest_operand)
    prompts = real_prompts(settings, real.examples, small, facts)
    numbered = evaluation.table(prompts, first=settings.evaluation_prompts)
    write_table(numbered, Path("data/corpus/real_tasks.parquet"))


def real_facts(path: Path) -> pl.DataFrame:
    """Read facts from a CSV file; capital_of follows from capital.

    Raises ParamsError if an entity has two answers.
    """
    facts = pl.read_csv(path).select(COLUMNS)
    capitals = facts.filter(relation="capital")
    cities = capitals.select(relation=pl.lit("capital_of"), entity="object", object="entity")
    facts = pl.concat([facts, cities]).sort("relation", "entity")
    asked = facts.select("relation", "entity")
    if asked.is_duplicated().any():
        relation, entity = asked.filter(asked.is_duplicated()).row(0)
        problem = f"{path}: {relation} of {entity!r} stands there twice"
        raise ParamsError(f"{problem}; a fact has one answer, leave out the other row")
    return facts


def real_prompts(
    settings: Tasks,
    examples: int,
    cells: pl.DataFrame,
    facts: pl.DataFrame,
) -> dict[str, list[Prompt]]:
    """Return prompts of each task, each prompt once; sums follow so many solved examples."""
    shots = settings.model_copy(update={"shots": [0.0] * examples + [1.0]})
    corpus = Corpus(shots, cells, facts, evaluation.evenly(cells), split=None)
    prompts = evaluation.drawn(corpus, shots)
    prompts["three_operands"] = _after_examples(prompts["three_operands"], examples)
    return {task: _once(drawn) for task, drawn in prompts.items()}


def _once(prompts: list[Prompt]) -> list[Prompt]:
    """Return each prompt once, without a split."""
    return list(dict.fromkeys(replace(prompt, split="all") for prompt in prompts))


def _after_examples(prompts: list[Prompt], examples: int) -> list[Prompt]:
    """Return each prompt after the prompts drawn before it, solved; the first ones have too few."""
    lines = [f"{prompt.prompt} {prompt.answer}" for prompt in prompts]
    after = []
    for number, prompt in list(enumerate(prompts))[examples:]:
        text = "\n".join([*lines[number - examples : number], prompt.prompt])
        after.append(replace(prompt, prompt=text))
    return after


if __name__ == "__main__":
    main()
