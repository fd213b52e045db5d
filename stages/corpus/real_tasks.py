"""Draw prompts for models that were not trained here: real facts, and sums of small numbers.

The table `tasks` has invented facts, which only our own models learned. Pretrained models get the
facts in real_facts.csv, which is curated by hand. Their sums have small operands, which most
tokenizers write in one or two tokens. The sums follow solved examples, because a base model rarely
answers in digits without them.

The stage reads data/corpus/cells.parquet. It writes data/corpus/real_facts.parquet and
data/corpus/real_tasks.parquet.

Table real_facts: facts of the world for pretrained models
    relation  VARCHAR  capital, capital_of, kind, born_in, native_language or died_in
    entity    VARCHAR  country, city, thing or person that the question is about
    object    VARCHAR  the answer

Table real_tasks: prompts of the same tasks as in `tasks`, for models that were not trained here
    task           VARCHAR  arithmetic, number_words, three_operands, retrieval or factual
    prompt_number  INTEGER  number of the prompt within the task, from tasks.evaluation_prompts on,
                            so that no number is in `tasks`
    template       INTEGER  number of the template within the task, from 0; for facts, of the
                            relation
    operator       VARCHAR  operator of arithmetic and number_words; for three_operands both
                            operators in reading order; else null
    op1            INTEGER  first number of the prompt; null for facts
    op2            INTEGER  second number of the prompt; null for facts
    op3            INTEGER  third operand; null except for three_operands
    prompt         VARCHAR  text that the model reads, solved examples included
    answer         VARCHAR  text that should follow the prompt
    split          VARCHAR  all: no prompt was held out from training here
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
    prompts = real_prompts(settings, real, small, facts)
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
    questions = facts.select("relation", "entity")
    if questions.is_duplicated().any():
        relation, entity = questions.filter(questions.is_duplicated()).row(0)
        problem = f"{path}: two rows have relation {relation} and entity {entity!r}"
        raise ParamsError(f"{problem}; a fact has one answer, remove one of the rows")
    return facts


def real_prompts(
    settings: Tasks,
    real: RealTasks,
    cells: pl.DataFrame,
    facts: pl.DataFrame,
) -> dict[str, list[Prompt]]:
    """Return prompts of each task, each prompt once. All sums follow solved examples."""
    count, shots = real.evaluation_prompts, [0.0] * real.examples + [1.0]
    own = settings.model_copy(update={"shots": shots, "evaluation_prompts": count})
    corpus = Corpus(own, cells, facts, evaluation.evenly(cells), split=None)
    prompts = evaluation.drawn(corpus, own)
    prompts["three_operands"] = _after_examples(prompts["three_operands"], real.examples)
    return {task: _once(drawn) for task, drawn in prompts.items()}


def _once(prompts: list[Prompt]) -> list[Prompt]:
    """Return each prompt once, without a split."""
    return list(dict.fromkeys(replace(prompt, split="all") for prompt in prompts))


def _after_examples(prompts: list[Prompt], examples: int) -> list[Prompt]:
    """Return prompts after the solved prompts that were drawn before them.

    The first prompts, which have too few before them, are left out.
    """
    lines = [f"{prompt.prompt} {prompt.answer}" for prompt in prompts]
    after = []
    for number, prompt in list(enumerate(prompts))[examples:]:
        text = "\n".join([*lines[number - examples : number], prompt.prompt])
        after.append(replace(prompt, prompt=text))
    return after


if __name__ == "__main__":
    main()
