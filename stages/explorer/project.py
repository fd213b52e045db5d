"""What there is to explore: subjects, their tables, and in a sentence what is missing and which stage makes it.

All questions are put to one read-only connection, one after the other: DuckDB's connections are not meant for several threads.
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
from stages.lib.core.layered import LayerStore, widen
from stages.lib.core.settings import ParamsError, read
from stages.lib.core.shards import store_of
from stages.lib.core.words import CHAPTERS, OPERATORS
from stages.lib.heuristics import asked
from stages.lib.sql.cells import shown
from stages.lib.sql.database import ERRORS, Database, DatabaseError, connect, sentence
from stages.lib.sql.files import TABLES
from stages.lib.sql.missing import ways_to
from stages.lib.subject import Subject

Result = TypeVar("Result")
PATIENCE = 20.0  # seconds that a query may take


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
    """What cannot be shown, in a sentence or two that say why and what would help."""


class Project:
    """The tables below `data`, of the project in whose root we are, as they were when it was opened: see `is_current`."""

    def __init__(self, data: Path = Path("data")):
        self.data, self.seen = data, _seen(data)  # before anything is opened, so that no change is missed
        self._made_of: dict[str, int] = {}
        self._remarks: list[str] = []
        self._database: Database = connect(data, tell=self._remarks.append)
        self._lock = threading.Lock()

    def is_current(self) -> bool:
        """Whether tables and settings are still those that were there when it was opened."""
        return self.seen == _seen(self.data)

    def made_of(self, subject: str) -> int:
        """A number that changes with what a subject's model is loaded from: its settings, its own files, its prompts and means."""
        if subject not in self._made_of:
            described, weights = "", list[Path]()
            with suppress(ExplorerError, OSError):  # what has no entry, or cannot be looked at, cannot be loaded either
                of = self.subject(subject).settings
                described, weights = repr(of), sorted(Path(of.source).rglob("*"))
            own = [self.data / subject / "store" / name for name in ("means.h5", "prompts.parquet")]
            self._made_of[subject] = hash((described, _states([*weights, *own])))
        return self._made_of[subject]

    @cached_property
    def subjects(self) -> list[str]:
        """Those that have predictions, the default one first."""
        found = sorted({path.relative_to(self.data).parts[0] for path in self._database.files.get("predictions", [])} - {*CHAPTERS})
        if not found:
            raise ExplorerError(f"there is no subject in {self.data.absolute()}. {ways_to('predictions', '<subject>')}")
        default = read().get("default") if Path("params.yaml").exists() else None
        return sorted(found, key=lambda name: name != default)

    @cached_property
    def training(self) -> list[tuple[int, str, str]]:
        """Points of training that have predictions: step, subject, the subject that training ended with; in order."""
        points = read().get("trajectory", {}) if Path("params.yaml").exists() else {}
        return sorted((of["step"], name, of["last"]) for name, of in points.items() if name in self.subjects)

    @cached_property
    def symbols(self) -> dict[str, str]:
        """How each operator is written."""
        words = read().get("tasks", {}).get("operators", {}) if Path("params.yaml").exists() else {}
        return {operator: words.get(operator, {}).get("symbol", sign) for operator, sign in zip(OPERATORS, "+-*/", strict=True)}

    def example(self, subject: str) -> str:
        """Return a prompt that the subject is asked: 226-68 where it is.

        Otherwise it is one that the subject answers correctly, if any, in the middle of its grid.
        """
        if subject not in self._examples:
            self._examples[subject] = self._example(subject)
        return self._examples[subject]

    def _example(self, subject: str) -> str:
        rows = self.ask(EXAMPLE, subject=subject).rows() if self.has("predictions", subject) else []
        operator, op1, op2 = rows[0] if rows else ("subtract", 226, 68)
        return f"{op1}{self.symbols[operator]}{op2}"

    @cached_property
    def _examples(self) -> dict[str, str]:
        return {}

    def has(self, table: str, subject: str) -> bool:
        """Whether the subject has a table of its own of this name."""
        return any(path.relative_to(self.data).parts[0] == subject for path in self._database.files.get(table, []))

    def need(self, subject: str, *tables: str) -> None:
        """Raises ExplorerError, naming the stage that makes it, where the subject lacks one of these tables."""
        for table in tables:
            if not self.has(table, subject):
                raise ExplorerError(f"{subject} has no table {table} here. {ways_to(table, subject)}")

    def ask(self, query: str, **parameters: Any) -> pl.DataFrame:
        """The rows of one SELECT. Raises ExplorerError where it is wrong, takes too long or names what is not there."""
        return self.some(query, None, **parameters)

    def some(self, query: str, most: int | None, **parameters: Any) -> pl.DataFrame:
        """Return at most `most` rows of one SELECT; the engine may skip the others."""

        def read(relation: Any) -> pl.DataFrame:
            return (relation if most is None else relation.limit(most)).pl()

        return self._run(query, parameters, read)

    def page(self, query: str, most: int) -> tuple[pl.DataFrame, list[str]]:
        """Return the first rows of any SELECT, as a page shows them, and remarks on unknown names.

        A name is unknown if the query compares with it and no table has it.
        """

        def read(relation: Any) -> tuple[pl.DataFrame, list[str]]:
            return shown(relation.limit(most)).pl(), [*self._remarks]

        return self._run(query, {}, read)

    def rows(self, query: str, most: int, form: Callable[[Any], Any]) -> pa.Table:
        """Return at most `most` rows of any SELECT, in one of the forms of lib/sql/cells.py."""
        return self._run(query, {}, lambda relation: form(relation.limit(most)).to_arrow_table())

    def _run(
        self,
        query: str,
        parameters: dict[str, Any],
        read: Callable[[Any], Result],
    ) -> Result:
        with self._lock:
            self._remarks.clear()
            late = threading.Timer(PATIENCE, self._database.connection.interrupt)
            late.start()
            try:
                return read(self._database.sql(query, **parameters))
            except DatabaseError as error:
                raise ExplorerError(_explained(error)) from None
            except ERRORS as error:
                raise ExplorerError(sentence(error)) from None
            finally:
                late.cancel()

    def subject(self, name: str) -> Subject:
        """The handle that stages have. Raises ExplorerError where params.yaml does not know it."""
        try:
            return Subject.named(name)
        except (ParamsError, OSError) as error:
            raise ExplorerError(f"{error}") from None

    def store(self, subject: str, operator: str) -> LayerStore:
        """A subject's activations on an operator's square of prompts."""
        try:
            return self._opened(self.data / subject / "store/activations", operator)
        except (*ERRORS, OSError) as error:
            raise ExplorerError(f"{error}. {ways_to('activations', subject)}") from None

    def votes(self, subject: str) -> LayerStore:
        """A subject's value logits."""
        try:
            return self._opened(self.data / subject / "store/value_logits.h5", None)
        except (*ERRORS, OSError) as error:
            raise ExplorerError(f"{error}. {ways_to('value_logits', subject)}") from None

    def asked(self, subject: str) -> np.ndarray | None:
        """The number that each result is asked for (see lib/heuristics/asked.py), None where that is the result, or votes are not here."""
        return asked.numbers(self.votes(subject)) if self.has("value_logits", subject) else None

    @cached_property
    def _stores(self) -> dict[tuple[Path, str | None], LayerStore]:
        return {}

    def _opened(self, path: Path, operator: str | None) -> LayerStore:
        with self._lock:
            if (path, operator) not in self._stores:
                self._stores[path, operator] = store_of(path, operator) if operator else LayerStore(path)
            return self._stores[path, operator]

    def map(self, subject: str, operator: str, layer: int, neuron: int) -> tuple[Any, Any]:
        """A neuron's activations (op1, op2) in float32, and the answers of its prompts, -1 where a prompt has none."""
        store = self.store(subject, operator)
        if layer not in store.layers:
            kept = ", ".join(map(str, store.layers))
            raise ExplorerError(f"the activations of {subject} have no layer {layer}: {kept} are kept (subjects, layers in params.yaml)")
        if not 0 <= neuron < store.axes["neuron"]:
            raise ExplorerError(f"layer {layer} of {subject} has the neurons 0 to {store.axes['neuron'] - 1}, no neuron {neuron}")
        with self._lock:
            return widen(store.read(layer, slice(neuron, neuron + 1), slice(None)))[0], store.columns["result"]


def _explained(error: DatabaseError) -> str:
    """The engine's message; of a query that took too long, what helps."""
    if "INTERRUPT" in str(error):
        way_out = "Ask for fewer neurons or rows, or ask it with `bag`, which waits."
        return f"The query was stopped after {PATIENCE:.0f} seconds. {way_out}"
    return sentence(error)


def _seen(data: Path) -> int:
    """A number that changes with the files of tables below `data` and with those of settings; to look at 2,000 files takes 15 ms."""
    tables = (f"{folder}/{name}" for folder, _, names in os.walk(data) for name in names if name.endswith(TABLES))
    return hash(_states([*sorted(tables), *settings.files()]))


def _states(files: Iterable[str | Path]) -> tuple:
    """What changes whenever a file does: inode, size and time of the last change; None of one that is not there."""

    def state(file: str | Path) -> tuple[int, int, int] | None:
        try:
            found = os.stat(file)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    return tuple((str(file), state(file)) for file in files)
