"""Draws the prompt pairs of causal mediation: in the clean prompt's run, values of the counterfactual prompt's will be written in.

Reads data/corpus/cells.parquet, data/corpus/facts.parquet, the model's tokenizer and the files of a
user's own tasks; writes data/<subject>/mediation/mediation_pairs.parquet. For a model that was not
trained here, facts are those of data/corpus/real_facts.parquet. Operands are those of the model's
own grid. Solved examples in the model's own template stand before these questions, too, in the
words of each template.

The two prompts of a pair have as many tokens, of the same classes, and answers of
one token each; of subjects with answer_token, one token of the answer is asked for, and differs where answers do. Where draws find too
few such pairs, there are fewer. Tokens are classed by what they say: operands, operator, entity, the query of retrieval, or text in
front of (early), between (middle) or behind (late) operands; the last one is `last`.

Table mediation_pairs: prompts, each beside a counterfactual one that differs from it in a known way
    subject                      VARCHAR    the model
    pair                         INTEGER    number of the row, from 0
    task                         VARCHAR    arithmetic, number_words, three_operands, retrieval, factual, or a user's own
    condition                    VARCHAR    what differs: result_varies, result_fixed, operator_varies; query_varies, entity_varies
    template                     INTEGER    within the task, from 0; of three_operands the composition, of factual the relation
    operator                     VARCHAR    of the clean prompt; of three_operands both, as in "add multiply"; null where there is none
    shots                        INTEGER    solved examples before the question: the model's own, or
                                            drawn ones of the prompt's operator
    prompt                       VARCHAR    the clean prompt
    answer                       VARCHAR    what should follow
    counterfactual_prompt        VARCHAR    the other prompt
    counterfactual_answer        VARCHAR    what should follow it
    tokens                       INTEGER[]  the clean prompt, as the subject reads it
    answer_token                 INTEGER    token of answer
    classes                      VARCHAR[]  of each token: early, op1, op2, op3, operator, entity, query, middle, late or last
    positions                    STRUCT("last" SMALLINT)  where the last token stands in tokens, from 0
    counterfactual_tokens        INTEGER[]  the other prompt
    counterfactual_answer_token  INTEGER    token of counterfactual_answer
    counterfactual_positions     STRUCT("last" SMALLINT)  the same in counterfactual_tokens
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import polars as pl

from stages.corpus.settings import Tasks
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import read_table, write_table
from stages.lib.model import contents, tokenizer
from stages.lib.origins import trained_here
from stages.lib.subject import Subject, load_sizes
from stages.mediation.pairs import tokens
from stages.mediation.pairs.examples import solved
from stages.mediation.pairs.groups import Pair, PairGroup
from stages.mediation.pairs.tasks import Mediating
from stages.mediation.pairs.templates import Text
from stages.mediation.settings import Mediation

# by whether the model was trained here
FACTS = {True: "data/corpus/facts.parquet", False: "data/corpus/real_facts.parquet"}
LAST = pl.Struct({"last": pl.Int16})
SCHEMA: dict[str, Any] = {
    "task": pl.String, "condition": pl.String, "template": pl.Int32, "operator": pl.String, "shots": pl.Int32,
    "prompt": pl.String, "answer": pl.String, "counterfactual_prompt": pl.String, "counterfactual_answer": pl.String,
    "tokens": pl.List(pl.Int32), "answer_token": pl.Int32, "classes": pl.List(pl.String), "positions": LAST,
    "counterfactual_tokens": pl.List(pl.Int32), "counterfactual_answer_token": pl.Int32, "counterfactual_positions": LAST,
}  # fmt: skip
Found = tuple[Pair, tokens.Placed, tokens.Placed]
Place = Callable[[list[Text]], list[tokens.Placed | None]]


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(Mediation)
    tasks = mediating(subject, settings)  # before anything that takes long
    loaded = tokenizer.load(subject.settings.source)
    asked = subject.settings.answer_token
    each = settings.pairs_per_template | (load_sizes(name).pairs_per_template or {})
    place = partial(tokens.place, loaded, bos=subject.settings.bos, answer_token=asked)
    known = partial(tokens.known, loaded, answer_token=asked)
    rows = []
    for group in progress.bar(tasks.groups(known), desc=f"mediation pairs {name}", unit="group"):
        rows += [_row(group, *found) for found in suitable(group, each[group.task], settings, place)]
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_row_index("pair")
    lengths = pl.col("tokens", "counterfactual_tokens").list.len()
    longest = table.select(pl.max_horizontal(lengths)).max().item()
    contents.limits(subject.settings.source).check_length(longest or 0)
    columns = [pl.lit(name).alias("subject"), pl.col("pair").cast(pl.Int32), *SCHEMA]
    write_table(table.select(columns), subject.path("mediation/mediation_pairs.parquet"))


def mediating(subject: Subject, settings: Mediation) -> Mediating:
    """Return the groups of pairs for a model: of facts that it can know and its own operands."""
    cells, words = read_table("data/corpus/cells.parquet"), load(Tasks)
    facts = read_table(FACTS[trained_here(subject.name)])
    if (largest := subject.settings.largest_operand) is not None:
        cells = cells.filter(pl.max_horizontal("op1", "op2") <= largest)
    examples = solved(subject.settings.template, words.operators)
    return Mediating(settings, words, cells, facts, subject.settings.operators, examples)


def suitable(group: PairGroup, wanted: int, settings: Mediation, place: Place) -> list[Found]:
    """As many pairs of the group as are wanted whose prompts are alike in tokens; fewer where draws run out."""
    drawn = group.pairs(settings.mediation_seed, wanted * settings.draws_per_pair)
    found: list[Found] = []
    some: list[Pair] = []
    while len(found) < wanted and (some := list(islice(drawn, max(wanted, 2 * len(some))))):  # few calls, since a call is dear
        clean = [(pair, one) for pair, one in zip(some, place([pair.clean for pair in some]), strict=True) if one]
        others = place([pair.counterfactual for pair, _ in clean])
        found += [(pair, one, other) for (pair, one), other in zip(clean, others, strict=True) if other and _alike(pair, one, other)]
    return found[:wanted]


def _alike(pair: Pair, one: tokens.Placed, other: tokens.Placed) -> bool:
    """Whether both prompts have tokens of the same classes, and, where their answers differ, asked tokens that differ, too."""
    return one.classes == other.classes and (pair.clean.answer == pair.counterfactual.answer or one.answer != other.answer)


def _row(group: PairGroup, pair: Pair, clean: tokens.Placed, counterfactual: tokens.Placed) -> tuple:
    texts = [text for side in (pair.clean, pair.counterfactual) for text in (side.prompt, side.answer)]
    last = {"last": len(clean.tokens) - 1}
    kind = (group.task, group.condition, group.template, group.operator, group.shots)
    return *kind, *texts, clean.tokens, clean.answer, clean.classes, last, counterfactual.tokens, counterfactual.answer, last


if __name__ == "__main__":
    main(sys.argv[1])
