"""Draw the prompt pairs of causal mediation.

While the model runs a pair's clean prompt, a component takes its value from the run of the
counterfactual prompt. This stage reads data/corpus/cells.parquet, data/corpus/facts.parquet (for
pretrained models data/corpus/real_facts.parquet), the model's tokenizer, and the files of a user's
own tasks. Operands are those of the model's own grid. If the model's own template begins with
solved examples, the same examples stand before these questions, in the words of each template.

The prompts of a pair have equally many tokens, of the same classes, and each answer is one token. A
model with `answer_token` predicts one token of longer answers. It differs between the prompts if
their answers differ. If too few draws give such a pair, there are fewer pairs.

Table mediation_pairs: pairs of a clean prompt and a counterfactual one that differs in a known way
    subject                      VARCHAR                  the model
    pair                         INTEGER                  number of the pair, from 0
    task                         VARCHAR                  arithmetic, number_words, three_operands,
                                                          retrieval, factual, or a user's own task
    condition                    VARCHAR                  what differs within the pair:
                                                          result_varies, result_fixed,
                                                          operator_varies, query_varies or
                                                          entity_varies
    template                     INTEGER                  number of the template within the task,
                                                          from 0; for three_operands of the
                                                          composition, for factual of the relation
    operator                     VARCHAR                  operator of the clean prompt; for
                                                          three_operands both, as in "add multiply";
                                                          null for tasks without operators
    shots                        INTEGER                  solved examples before the question: the
                                                          model's own, or drawn ones of the clean
                                                          prompt's operator
    prompt                       VARCHAR                  the clean prompt
    answer                       VARCHAR                  answer to the clean prompt
    counterfactual_prompt        VARCHAR                  the counterfactual prompt
    counterfactual_answer        VARCHAR                  answer to the counterfactual prompt
    tokens                       INTEGER[]                token ids of the clean prompt
    answer_token                 INTEGER                  token id of the clean prompt's answer
    classes                      VARCHAR[]                class of each token of either prompt: op1,
                                                          op2, op3, operator, entity, query (of
                                                          retrieval), text before (early), between
                                                          (middle) or after (late) the operands, or
                                                          last, the last token
    positions                    STRUCT("last" SMALLINT)  position of the last token in tokens, from
                                                          0
    counterfactual_tokens        INTEGER[]                token ids of the counterfactual prompt
    counterfactual_answer_token  INTEGER                  token id of the counterfactual prompt's
                                                          answer
    counterfactual_positions     STRUCT("last" SMALLINT)  position of the last token in
                                                          counterfactual_tokens, from 0
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from stages.mediation.pairs.examples import solved, unread
from stages.mediation.pairs.groups import Pair, PairGroup
from stages.mediation.pairs.tasks import PairGroups
from stages.mediation.pairs.templates import Text
from stages.mediation.settings import Mediation

FACTS = "data/corpus/facts.parquet"  # for models that were trained here
REAL_FACTS = "data/corpus/real_facts.parquet"  # for pretrained models
LAST = pl.Struct({"last": pl.Int16})
SCHEMA: dict[str, Any] = {
    "task": pl.String,
    "condition": pl.String,
    "template": pl.Int32,
    "operator": pl.String,
    "shots": pl.Int32,
    "prompt": pl.String,
    "answer": pl.String,
    "counterfactual_prompt": pl.String,
    "counterfactual_answer": pl.String,
    "tokens": pl.List(pl.Int32),
    "answer_token": pl.Int32,
    "classes": pl.List(pl.String),
    "positions": LAST,
    "counterfactual_tokens": pl.List(pl.Int32),
    "counterfactual_answer_token": pl.Int32,
    "counterfactual_positions": LAST,
}
Place = Callable[[list[Text]], list[tokens.Placed | None]]  # encodes prompts


@dataclass(frozen=True)
class PlacedPair:
    """A pair of prompts with their tokens."""

    pair: Pair
    clean: tokens.Placed
    counterfactual: tokens.Placed

    @property
    def is_suitable(self) -> bool:
        """Whether tokens have the same classes, and answers' tokens differ if the answers do."""
        if self.clean.classes != self.counterfactual.classes:
            return False
        same_answer = self.pair.clean.answer == self.pair.counterfactual.answer
        return same_answer or self.clean.answer != self.counterfactual.answer


def main(name: str) -> None:
    """Draw and write one model's pairs."""
    subject, settings = Subject.named(name), load(Mediation)
    tasks = pair_groups(subject, settings)  # raises errors in settings before anything slow
    encoder = tokenizer.load(subject.settings.source)
    answer_token = subject.settings.answer_token
    wanted = settings.pairs_per_template | (load_sizes(name).pairs_per_template or {})
    place = partial(tokens.place, encoder, bos=subject.settings.bos, answer_token=answer_token)
    known = partial(tokens.known, encoder, answer_token=answer_token)
    if subject.settings.chat:
        progress.say(f"mediation pairs {name}: prompts are plain text, outside the chat template")
    rows: list[tuple] = []
    lacking: Counter[str] = Counter()  # pairs that are missing, by task
    for group in progress.bar(tasks.groups(known), desc=f"mediation pairs {name}", unit="group"):
        pairs = suitable_pairs(group, wanted[group.task], settings, place)
        rows += (_row(group, pair) for pair in pairs)
        lacking[group.task] += wanted[group.task] - len(pairs)
    for task, number in (+lacking).items():
        progress.say(
            f"mediation pairs {name}: {number} pairs of {task} are missing, for which no suitable "
            "prompts were drawn; mediation.draws_per_pair allows more draws"
        )
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_row_index("pair")
    lengths = pl.col("tokens", "counterfactual_tokens").list.len()
    longest = table.select(pl.max_horizontal(lengths)).max().item()
    contents.limits(subject.settings.source).check_length(longest or 0)
    columns = [pl.lit(name).alias("subject"), pl.col("pair").cast(pl.Int32), *SCHEMA]
    write_table(table.select(columns), subject.path("mediation/mediation_pairs.parquet"))


def pair_groups(subject: Subject, settings: Mediation) -> PairGroups:
    """Return the groups of pairs for a model, with facts and operands in its range."""
    cells, tasks = read_table("data/corpus/cells.parquet"), load(Tasks)
    facts = read_table(FACTS if trained_here(subject.name) else REAL_FACTS)
    largest = subject.settings.largest_operand
    if largest is not None:
        cells = cells.filter(pl.max_horizontal("op1", "op2") <= largest)
    template = subject.settings.template
    examples = solved(template, tasks.operators)
    if unread(template, examples):
        progress.say(
            f"mediation pairs {subject.name}: no solved example is recognised in the template "
            f"{template!r}, so prompts have none; write examples as its question, with the answer"
        )
    return PairGroups(settings, tasks, cells, facts, subject.settings.operators, examples)


def suitable_pairs(
    group: PairGroup, wanted: int, settings: Mediation, place: Place
) -> list[PlacedPair]:
    """Draw suitable pairs of a group: as many as are wanted, or fewer if draws run out."""
    drawn = group.pairs(settings.mediation_seed, wanted * settings.draws_per_pair)
    suitable: list[PlacedPair] = []
    size = wanted  # large batches, since each call of a tokenizer is slow
    while len(suitable) < wanted:
        batch = list(islice(drawn, size))
        if not batch:
            break
        suitable += filter(lambda pair: pair.is_suitable, _place_pairs(batch, place))
        size = max(wanted, 2 * len(batch))
    return suitable[:wanted]


def _place_pairs(pairs: list[Pair], place: Place) -> Iterator[PlacedPair]:
    """Yield the pairs with their tokens, without prompts that the tokenizer cannot encode."""
    placed = zip(pairs, place([pair.clean for pair in pairs]), strict=True)
    clean = [(pair, prompt) for pair, prompt in placed if prompt]
    counterfactuals = place([pair.counterfactual for pair, _ in clean])
    for (pair, prompt), counterfactual in zip(clean, counterfactuals, strict=True):
        if counterfactual:
            yield PlacedPair(pair, prompt, counterfactual)


def _row(group: PairGroup, placed: PlacedPair) -> tuple:
    pair, clean, counterfactual = placed.pair, placed.clean, placed.counterfactual
    last = {"last": len(clean.tokens) - 1}
    return (
        group.task,
        group.condition,
        group.template,
        group.operator,
        group.shots,
        pair.clean.prompt,
        pair.clean.answer,
        pair.counterfactual.prompt,
        pair.counterfactual.answer,
        clean.tokens,
        clean.answer,
        clean.classes,
        last,
        counterfactual.tokens,
        counterfactual.answer,
        last,
    )


if __name__ == "__main__":
    main(sys.argv[1])
