"""Draw prompt pairs with the real stage on a small grid, and read them by their templates."""

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stages.corpus import real_tasks
from stages.corpus.prompts import CALCULATE, NUMBER_WORDS, Corpus
from stages.corpus.settings import Tasks
from stages.lib.core import settings as sections
from stages.lib.model import tokenizer as tokenizers
from stages.lib.origins import ORIGINS
from stages.lib.sql.database import Database
from stages.mediation import mediation_pairs
from tests import vocabularies
from tests.micro import ROOT, SHIPPED, merged

CELLS = {"largest_operand": 40, "largest_answer": 99, "held_out_percent": 10, "seed": 0}
MEDIATION: dict[str, Any] = {
    "pairs_per_template": {
        "arithmetic": 6,
        "number_words": 5,
        "three_operands": 4,
        "retrieval": 7,
        "factual": 8,
    },
    "shots": {"arithmetic": 0, "number_words": 0, "three_operands": 0},
    "operands": [1, 300],
    "smallest_result": 1,
    "bracketed": {
        "left": "({x} {first} {y}) {second} {z} =",
        "right": "{x} {first} ({y} {second} {z}) =",
    },
    "draws_per_pair": 40,
    "mediation_seed": 0,
    "tables": {},
}
SHOTS = {"shots": {"arithmetic": 2, "number_words": 1, "three_operands": 2}}
TASKS = sections.check(Tasks, SHIPPED["tasks"])


@cache
def tables() -> dict[str, pl.DataFrame]:
    made = {}
    for name, settings in {"cells": CELLS, "facts": SHIPPED["facts"]}.items():
        query = (ROOT / f"stages/corpus/{name}.sql").read_text()
        made[name] = Database({}).sql(query, **settings).pl()
    return made


@cache
def real_facts() -> pl.DataFrame:
    return real_tasks.real_facts(ROOT / real_tasks.FACTS)


@cache
def corpus() -> Corpus:
    cells, facts = tables().values()
    return Corpus(TASKS, cells, facts, np.ones(len(cells)), None)


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer.

    word: our own; signs: our own without words; digits: one token for each digit and letter;
    pieces: byte-level, in which most numbers and words are several tokens, and blanks belong to
    the next token
    """
    if kind == "digits":
        return vocabularies.by_digit_with_blanks()
    if kind != "pieces":
        return tokenizers.build(99, {"word": [*corpus().texts()], "signs": ["+ - * / ="]}[kind])
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        [f"{n} plus {n}" for n in range(60)] + [*corpus().texts()] * 3, trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


def project(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder in which the stage runs: settings, tables, and the tokenizer of the subject `s`."""
    trained_here = changes.pop("trained_here", True)
    subject = SHIPPED["subjects"]["abacus"] | {"source": "model"} | changes.pop("subject", {})
    settings = {
        "subjects": {"s": subject},
        "tasks": merged(SHIPPED["tasks"], changes.pop("tasks", {})),
    }
    (folder / "data/corpus").mkdir(parents=True)
    (folder / "params.yaml").write_text(
        yaml.safe_dump(settings | {"mediation": MEDIATION | changes}, sort_keys=False)
    )
    for name, table in tables().items():
        table.write_parquet(folder / f"data/corpus/{name}.parquet")
    real_facts().write_parquet(folder / "data/corpus/real_facts.parquet")
    (folder / ORIGINS).mkdir(parents=True)
    origin = {"subject": ["s"], "source": ["model"], "trained_here": [trained_here]}
    pl.DataFrame(origin).write_parquet(folder / ORIGINS / "s.parquet")
    tokenizer(kind).save_pretrained(folder / "model")
    config = {"model_type": "llama", "vocab_size": 10**6}
    (folder / "model/config.json").write_text(json.dumps(config))
    return folder


def drawn(folder: Path, monkeypatch: Any) -> pl.DataFrame:
    """What the stage writes in this folder."""
    monkeypatch.chdir(folder)
    mediation_pairs.main("s")
    return pl.read_parquet("data/s/mediation/mediation_pairs.parquet")


@cache
def templates(task: str, template: int) -> dict[str, str]:
    """Return operator -> the text of a task and template, with placeholders."""
    if task in ("arithmetic", "number_words"):
        text = TASKS.arithmetic[template]
        return {name: _with_words(text, vars(word)) for name, word in TASKS.operators.items()}
    if task == "three_operands":
        brackets = "left" if corpus().compositions[template][2] else "right"
        text = MEDIATION["bracketed"][brackets]
        texts = {}
        for first, second in product(TASKS.operators, repeat=2):
            symbols = TASKS.operators[first].symbol, TASKS.operators[second].symbol
            words = dict(zip(("first", "second"), symbols, strict=True))
            texts[f"{first} {second}"] = _with_words(text, words)
        return texts
    if task == "retrieval":
        return {"": TASKS.retrieval[template]}
    return {"": [*TASKS.factual.values()][template]}


def _with_words(text: str, words: dict[str, str]) -> str:
    """Return a template with these placeholders filled."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def read(task: str, template: int, text: str) -> tuple[str, dict[str, str]]:
    """Return the operator of a question in words, and the values of its placeholders."""
    readings = []
    for operator, wording in templates(task, template).items():
        pattern = re.sub(r"\\\{(\w)(\w*)\\\}", r"(?P<\1\2>[\\w-]+)", re.escape(wording))
        match = re.fullmatch(pattern, text)
        if match:
            readings.append((operator, match.groupdict()))
    [reading] = readings
    return reading


def read_question(task: str, template: int, text: str) -> tuple[str, list[int]]:
    """Return the operator of an arithmetic question, and its operands."""
    operator, values = read(task, template, text)
    return operator, [number(values[name]) for name in "xyz" if name in values]


def number(text: str) -> int:
    """Return the number that a text names in digits or in words."""
    return int(text) if text.isdigit() else NUMBER_WORDS.index(text)


def calculate(first: str, second: str, left: bool, operands: Sequence[int]) -> int | None:
    """Apply two operators, the first of them in brackets if `left`."""
    x, y, z = operands
    if left:
        inner = CALCULATE[first](x, y)
        return None if inner is None else CALCULATE[second](inner, z)
    inner = CALCULATE[second](y, z)
    return None if inner is None else CALCULATE[first](x, inner)
