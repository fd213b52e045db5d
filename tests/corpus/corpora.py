"""Make the tables of the corpus, and read the numbers of a prompt."""

import re

import polars as pl

from stages.corpus.prompts import NUMBER_WORDS
from stages.lib.sql.database import Database
from tests.micro import ROOT, SHIPPED

NO_TABLES = Database({})


def table(name: str, **settings: int) -> pl.DataFrame:
    """Return the table cells or facts, with the study's settings except for the given ones."""
    query = (ROOT / f"stages/corpus/{name}.sql").read_text()
    return NO_TABLES.sql(query, **SHIPPED[name] | settings).pl()


def numbers(text: str) -> list[int]:
    """Return all numbers of a text in order, whether they are digits or words."""
    values = []
    for word in re.findall(r"\w+(?:-\w+)*", text):
        if word.isdigit():
            values.append(int(word))
        elif word in NUMBER_WORDS:
            values.append(NUMBER_WORDS.index(word))
    return values
