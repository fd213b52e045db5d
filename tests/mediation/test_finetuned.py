"""Before and after fine-tuning, against the tables it is made of."""

import polars as pl
import pytest

from tests.made import Tables, ask
from tests.mediation import mediated


def importance(given: Tables, name: str) -> pl.DataFrame:
    return mediated.importance(mediated.by_pair(given)).with_columns(subject=pl.lit(name))


def test_each_task_and_condition_is_there_before_and_after():
    before, after = (
        importance(mediated.subject(each=4), "s"),
        importance(mediated.subject(each=3), "t"),
    )
    both = pl.concat([before, after]).sample(fraction=1, shuffle=True, seed=0)
    table = ask(
        "finetuned", {"relative_importance": both}, subject="t", before="s", task="number_words"
    )
    everyone = [
        part.filter(operator="all", which="all").sort("task", "condition")
        for part in (before, after)
    ]
    assert table.select("task", "condition").equals(everyone[0].select("task", "condition"))
    assert set(table["subject"]) == {"t"}
    assert set(table["before"]) == {"s"}
    assert set(table["tuned_on"]) == {"number_words"}
    for end, part in zip(("_before", ""), everyone, strict=True):
        for column in ("importance", "ci_low", "ci_high", "log_effects"):
            assert table[f"{column}{end}"].to_list() == part[column].to_list()
    assert (
        table["pairs"].to_list() == everyone[1]["pairs"].to_list() != everyone[0]["pairs"].to_list()
    )
    answered = before.filter(operator="all", which="answered").sort("task", "condition")["pairs"]
    assert table["correct_before"].to_list() == pytest.approx(
        (answered / everyone[0]["pairs"]).to_list()
    )
