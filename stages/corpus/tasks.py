"""The prompts on which tasks outside the grid are measured, drawn at random: templates and facts evenly, operators as settings leave them
prompts (number words are confined to small numbers, three operands to sums that the grid has), so that they are not equally many.

Table tasks: prompts of the tasks of the causal-mediation study, with their answers
    task           VARCHAR   arithmetic, number_words, three_operands, retrieval or factual
    prompt_number  INTEGER   within the task, from 0
    template       INTEGER   within the task, from 0; of facts, the relation
    operator       VARCHAR   of arithmetic and number_words; of three_operands both, in reading order; else null
    op1            INTEGER   first number of the prompt, null for facts
    op2            INTEGER   second number of the prompt, null for facts
    op3            INTEGER   third operand, null except for three_operands
    prompt         VARCHAR   what the subject reads
    answer         VARCHAR   what it should say next
    split          VARCHAR   train or held-out: whether our own subject may have been trained on it
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
