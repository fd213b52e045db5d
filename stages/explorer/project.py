"""Read the tables and stores of a project, and name the stage that makes what is missing.

All queries use one read-only connection, one after another: a DuckDB connection is not meant for
several threads.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from stages.lib.core import settings
from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.settings import ParamsError, read
from stages.lib.core.shards import store_of
from stages.lib.core.vocabulary import CHAPTERS, OPERATORS
from stages.lib.heuristics import answer_tokens
from stages.lib.sql.cells import shown
from stages.lib.sql.database import ERRORS, Database, DatabaseError, connect, sentence
from stages.lib.sql.files import TABLES
from stages.lib.sql.missing import ways_to
from stages.lib.subject import Subject

Result = TypeVar("Result")
PATIENCE = 20.0  # seconds that a query may take
PARAMS = Path("params.yaml")
SYMBOLS = dict(zip(OPERATORS, "+-*/", strict=True))  # unless params.yaml has others
FALLBACK = ("subtract", 226, 68)  # the example of a model without predictions


EXAMPLE = """
    with
        prompts as (
            select operator, op1, op2, correct
            from predictions join cells using (operator, op1, op2)
            where subject = $subject and correct is not null
        ),
        grid as (
            select least(226, max(op1) * 3 // 4) as first, least(68, max(op1) // 4) as second
            from prompts
        )
    select operator, op1, op2 from prompts, grid
    order by
        (operator, op1, op2) <> ('subtract', 226, 68), not correct, operator <> 'subtract',
        abs(op1 - first) + abs(op2 - second), operator, op1, op2
    limit 1
"""


class ExplorerError(ValueError):
    """What cannot be shown: the problem in a sentence or two, then the fix."""


class Project:
    """The tables below `data`, as they were when the project was opened; see `is_current`.

    The current folder is the root of the project.
    """

    def __init__(self, data: Path = Path("data")):
        # the files are noted before anything is opened, so that no change is missed
        self.data, self.seen = data, _seen(data)
        self._made_of: dict[str, int] = {}
        self._examples: dict[str, str] = {}
        self._stores: dict[tuple[Path, str | None], LayerStore] = {}
        self._remarks: list[str] = []
        self._database: Database = connect(data, tell=self._remarks.append)
        self._lock = threading.Lock()

    def is_current(self) -> bool:
        """Return whether tables and settings have not changed since the project was opened."""
        return self.seen == _seen(self.data)

    def made_of(self, subject: str) -> int:
        """Return a number that changes with the files from which a model is loaded.

        These are its settings, its own files, its prompts and the means of its activations.
        """
        if subject not in self._made_of:
            described, weights = "", list[Path]()
            # a model without an entry, or whose files cannot be read, cannot be loaded either
            with suppress(ExplorerError, OSError):
                model = self.subject(subject).settings
                described, weights = repr(model), sorted(Path(model.source).rglob("*"))
            store = self.data / subject / "store"
            own = [store / "means.h5", store / "prompts.parquet"]
            self._made_of[subject] = hash((described, _states([*weights, *own])))
        return self._made_of[subject]

    @cached_property
    def subjects(self) -> list[str]:
        """The models with predictions, the default model first."""
        names = sorted(self._subjects_with("predictions") - {*CHAPTERS})
        if not names:
            problem = f"no model has predictions in {self.data.absolute()}."
            raise ExplorerError(f"{problem} {ways_to('predictions', '<subject>')}")
        default = _section("default")
        return sorted(names, key=lambda name: name != default)

    @cached_property
    def training(self) -> list[tuple[int, str, str]]:
        """Checkpoints with predictions, in order: step, subject, last subject of the training."""
        checkpoints = _section("trajectory").items()
        known = [(name, point) for name, point in checkpoints if name in self.subjects]
        return sorted((point["step"], name, point["last"]) for name, point in known)

    @cached_property
    def symbols(self) -> dict[str, str]:
        """The symbol of each operator in prompts."""
        words = _section("tasks").get("operators", {})
        return {name: words.get(name, {}).get("symbol", sign) for name, sign in SYMBOLS.items()}

    def example(self, subject: str) -> str:
        """Return a prompt of the model: 226-68 if its grid has it.

        Otherwise it is a prompt in the middle of the grid, answered correctly if any prompt is.
        """
        if subject not in self._examples:
            operator, op1, op2 = self._example(subject)
            self._examples[subject] = f"{op1}{self.symbols[operator]}{op2}"
        return self._examples[subject]

    def _example(self, subject: str) -> tuple[str, int, int]:
        if not self.has("predictions", subject):
            return FALLBACK
        rows = self.ask(EXAMPLE, subject=subject).rows()
        return next(iter(rows), FALLBACK)

    def has(self, table: str, subject: str) -> bool:
        """Return whether a model has its own table of this name."""
        return subject in self._subjects_with(table)

    def _subjects_with(self, table: str) -> set[str]:
        """Return the folders below data that have a table."""
        files = self._database.files.get(table, [])
        return {path.relative_to(self.data).parts[0] for path in files}

    def need(self, subject: str, *tables: str) -> None:
        """Raise ExplorerError, which names the stage, if a model lacks one of these tables."""
        for table in tables:
            if not self.has(table, subject):
                problem = f"{subject} has no table {table} here."
                raise ExplorerError(f"{problem} {ways_to(table, subject)}")

    def ask(self, query: str, **parameters: Any) -> pl.DataFrame:
        """Return the rows of one SELECT.

        Raises ExplorerError if it is wrong, takes longer than PATIENCE or names unknown tables.
        """
        return self._run(query, parameters, lambda relation: relation.pl())

    def page(self, query: str, most: int) -> tuple[pl.DataFrame, list[str]]:
        """Return the first rows of any SELECT, as a page shows them, and remarks on unknown names.

        A name is unknown if the query compares with it and no table has it.
        """

        def first_rows(relation: Any) -> tuple[pl.DataFrame, list[str]]:
            return shown(relation.limit(most)).pl(), [*self._remarks]

        return self._run(query, {}, first_rows)

    def rows(self, query: str, most: int, form: Callable[[Any], Any]) -> pa.Table:
        """Return at most `most` rows of any SELECT, in one of the forms of lib/sql/cells.py."""
        return self._run(query, {}, lambda relation: form(relation.limit(most)).to_arrow_table())

    def _run(
        self,
        query: str,
        parameters: dict[str, Any],
        fetch: Callable[[Any], Result],
    ) -> Result:
        with self._lock:
            self._remarks.clear()
            timer = threading.Timer(PATIENCE, self._database.connection.interrupt)
            timer.start()
            try:
                return fetch(self._database.sql(query, **parameters))
            except DatabaseError as error:
                raise ExplorerError(_explained(error)) from None
            except ERRORS as error:
                raise ExplorerError(sentence(error)) from None
            finally:
                timer.cancel()

    def subject(self, name: str) -> Subject:
        """Return the handle that stages use. Raises ExplorerError if params.yaml lacks it."""
        try:
            return Subject.named(name)
        except (ParamsError, OSError) as error:
            raise ExplorerError(f"{error}") from None

    def store(self, subject: str, operator: str) -> LayerStore:
        """Return the store of a model's activations on an operator's grid."""
        try:
            return self._opened(self.data / subject / "store/activations", operator)
        except (*ERRORS, OSError) as error:
            raise ExplorerError(f"{error}. {ways_to('activations', subject)}") from None

    def value_logits(self, subject: str) -> LayerStore:
        """Return the store with the direct logit attribution of a model's neurons."""
        try:
            return self._opened(self.data / subject / "store/value_logits.h5", None)
        except (*ERRORS, OSError) as error:
            raise ExplorerError(f"{error}. {ways_to('value_logits', subject)}") from None

    def targets(self, subject: str) -> np.ndarray | None:
        """Return the number that the model has to predict for each result.

        None if that is the result itself, or if the value logits are missing. Otherwise the model
        predicts one token of the answer; see lib/heuristics/answer_tokens.py.
        """
        if not self.has("value_logits", subject):
            return None
        return answer_tokens.numbers(self.value_logits(subject))

    def _opened(self, path: Path, operator: str | None) -> LayerStore:
        with self._lock:
            if (path, operator) not in self._stores:
                store = LayerStore(path) if operator is None else store_of(path, operator)
                self._stores[path, operator] = store
            return self._stores[path, operator]

    def map(
        self,
        subject: str,
        operator: str,
        layer: int,
        neuron: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a neuron's activations and the results of their prompts.

        Both are (op1, op2): float32 activations, and integers that are -1 for a prompt without an
        answer. Raises ExplorerError if the store lacks the neuron.
        """
        store = self.store(subject, operator)
        if layer not in store.layers:
            kept = ", ".join(map(str, store.layers))
            problem = f"the activations of {subject} have no layer {layer}"
            fix = f"the store keeps the layers {kept} (subjects, layers in params.yaml)"
            raise ExplorerError(f"{problem}; {fix}")
        last = store.axes["neuron"] - 1
        if not 0 <= neuron <= last:
            problem = f"layer {layer} of {subject} has no neuron {neuron}"
            raise ExplorerError(f"{problem}; choose a neuron from 0 to {last}")
        with self._lock:
            values = widen(store.read(layer, slice(neuron, neuron + 1), slice(None)))
            return values[0], store.columns["result"]


def _section(name: str) -> Any:
    """Return a section of params.yaml, empty if the file or the section is missing."""
    if not PARAMS.exists():
        return {}
    return read().get(name, {})


def _explained(error: DatabaseError) -> str:
    """Return the engine's message, or advice if the query took too long."""
    if "INTERRUPT" in str(error):
        fix = "Ask for fewer neurons or rows, or run it with `bag`, which waits."
        return f"The query was stopped after {PATIENCE:.0f} seconds. {fix}"
    return sentence(error)


def _seen(data: Path) -> int:
    """Return a number that changes with the tables below `data` and with the settings.

    Looking at 2,000 files takes 15 ms.
    """
    tables: list[str] = []
    for folder, _, names in os.walk(data):
        tables += [f"{folder}/{name}" for name in names if name.endswith(TABLES)]
    return hash(_states([*sorted(tables), *settings.files()]))


def _states(files: Iterable[str | Path]) -> tuple:
    """Return what changes with a file: inode, size and time of change; None if it is missing."""

    def state(file: str | Path) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(file)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    return tuple((str(file), state(file)) for file in files)
