"""Draw the prompts on which tasks outside the grid are measured.

Templates and facts are drawn uniformly. Operators are not equally frequent, because settings limit
the prompts: number words are for small numbers, and three operands for answers that the grid has.

Table tasks: prompts of the tasks of the causal mediation study, with their answers
    task           VARCHAR  arithmetic, number_words, three_operands, retrieval or factual
    prompt_number  INTEGER  number of the prompt within the task, from 0
    template       INTEGER  number of the template within the task, from 0; for facts, of the
                            relation
    operator       VARCHAR  operator of arithmetic and number_words; for three_operands both
                            operators in reading order; else null
    op1            INTEGER  first number of the prompt; null for facts
    op2            INTEGER  second number of the prompt; null for facts
    op3            INTEGER  third operand; null except for three_operands
    prompt         VARCHAR  text that the model reads
    answer         VARCHAR  text that should follow the prompt
    split          VARCHAR  train or held-out: whether our own models may have been trained on it
"""

from pathlib import Path

from stages.corpus import evaluation
from stages.corpus.prompts import Corpus
from stages.corpus.settings import Tasks
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table


def main() -> None:
    settings = load(Tasks)
    cells = read_table("data/corpus/cells.parquet")
    facts = read_table("data/corpus/facts.parquet")
    corpus = Corpus(settings, cells, facts, evaluation.evenly(cells), split=None)
    table = evaluation.table(evaluation.drawn(corpus, settings))
    write_table(table, Path("data/corpus/tasks.parquet"))


if __name__ == "__main__":
    main()
