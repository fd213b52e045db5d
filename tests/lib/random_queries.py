"""Compare random joins over lazy and ordinary tables with plain DuckDB over copies of the tables.

    python -m tests.lib.random_queries 5000 --seed 1

prints each query whose rows differ, and the numbers of valid queries and of queries for which a
lazy table was not read as a whole.
"""

import argparse
import random
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import polars as pl

from stages.lib.core import hdf5_store
from stages.lib.sql.database import Database, connect

KEYS = ["subject", "operator", "layer", "neuron"]
NUMBERS = ["layer", "neuron"]
COLUMNS = {  # small tables
    "effects": [*KEYS, "rank", "position"],
    "labels": [*KEYS, "heuristic"],
    "layers": ["subject", "layer", "kind"],
    "cells": ["operator", "op1", "op2", "result"],
}
LAZY = {
    "activations": [*KEYS, "op1", "op2", "activation"],
    "value_logits": ["subject", "layer", "neuron", "number", "logit"],
}
VALUES = {
    "subject": ["'a'", "'b'"],
    "operator": ["'add'", "'divide'"],
    "layer": ["0", "2"],
    "neuron": ["1", "3", "5"],
    "rank": ["1", "2", "4"],
    "position": ["'last'", "'first'", "'limit'", "'random'"],
    "heuristic": ["'list'", "'now'"],
    "kind": ["'early'", "'late'"],
    "op1": ["0", "1"],
    "op2": ["0", "1"],
    "result": ["0", "1", "2"],
    "number": ["0", "2"],
}
JOINS = [
    *["join"] * 8,
    "inner join",
    "left join",
    "semi join",
    "semi join",
    "anti join",
    "natural join",
    "right join",
    "full join",
]


AND = [" and "] * 4


def connect_to_tables(folder: Path) -> tuple[Database, duckdb.DuckDBPyConnection]:
    """Write small stores and tables, and open them as a Database and in a plain DuckDB."""
    rng = np.random.default_rng(0)
    for subject in ("a", "b"):
        for operator in ("add", "divide"):
            with hdf5_store.writing(folder / subject / f"store/activations/{operator}.h5") as file:
                attributes = {"subject": subject, "operator": operator}
                axes = {"neuron": 6, "op1": 2, "op2": 2}
                writer = hdf5_store.LayerWriter(
                    file, [0, 2], axes, "float16", (1, 2, 2), attributes
                )
                for layer in (0, 2):
                    writer.write(layer, 0, rng.normal(size=tuple(axes.values())))
        with hdf5_store.writing(folder / subject / "store/value_logits.h5") as file:
            writer = hdf5_store.LayerWriter(
                file, [0, 2], {"neuron": 6, "number": 3}, "float32", (1, 3), {"subject": subject}
            )
            for layer in (0, 2):
                writer.write(layer, 0, rng.normal(size=(6, 3)))
    for table, columns in COLUMNS.items():
        rows = {name: _column(name, rng, 9) for name in columns}
        pl.DataFrame(rows).write_parquet(folder / f"neurons/{table}.parquet", mkdir=True)
    database, plain = connect(folder, threads=1), duckdb.connect(config={"threads": 1})
    for name in database.tables():
        frame = database.sql(f"from {name}").to_arrow_table()
        plain.register("frame", frame)
        plain.execute(f"create table {name} as from frame")
        plain.unregister("frame")
    return database, plain


def _column(name: str, rng: np.random.Generator, rows: int) -> pl.Series:
    values = rng.choice([value.strip("'") for value in VALUES[name]], rows).tolist()
    kind = pl.String if VALUES[name][0].startswith("'") else pl.Int32
    return pl.Series(name, values).cast(kind)


class Generator:
    """Writes queries. Most of them are valid; the others make both databases fail."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def query(self) -> str:
        self.ctes: dict[str, list[str]] = {}
        texts = []
        for name in ("top", "labels", "some")[: self.random.choice([0, 0, 1, 2, 3])]:
            text, columns = self._listed()
            texts.append(f"{name} as ({text})")
            self.ctes[name] = columns  # the later ones may read it
        prefix = f"with {', '.join(texts)} " if texts else ""
        return prefix + self._select()

    def _pick(self, *options: str) -> str:
        return self.random.choice(options)

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _tables(self) -> dict[str, list[str]]:
        return COLUMNS | self.ctes

    def _listed(self) -> tuple[str, list[str]]:
        """Return a subquery that lists keys, and its columns."""
        table = self._pick(*self._tables())
        columns = self._tables()[table]
        where = f" where {self._test({'': columns})}" if self._chance(0.6) else ""
        if self._chance(0.15):
            other = self._pick(*COLUMNS)
            if other != table:
                return self._joined(table, other)
        orders = (" order by all", " order by all limit 3", " order by all desc limit 1 offset 1")
        order = self._pick("", "", "", *orders)
        if self._chance(0.3):
            others = self.random.sample(columns, len(columns)) if self._chance(0.3) else columns
            pairs = list(zip(columns, others, strict=True))
            alike = [(old, new) for old, new in pairs if VALUES[old][0][0] == VALUES[new][0][0]]
            alike = alike or list(zip(columns, columns, strict=True))
            listed = ", ".join(f"{old} as {new}" for old, new in alike)
            return f"select distinct {listed} from {table}{where}{order}", [new for _, new in alike]
        return self._pick("select * from ", "from ") + f"{table}{where}{order}", columns

    def _joined(self, first: str, second: str) -> tuple[str, list[str]]:
        """Return a subquery that joins two tables, and its columns."""
        columns, others = self._tables()[first], self._tables()[second]
        shared = [name for name in columns if name in others]
        rest = [name for name in others if name not in shared]
        kind = self._pick(
            "join", "join", "left join", "right join", "full join", "semi join", "natural join"
        )
        using = "" if kind == "natural join" else f" using ({', '.join(shared)})"
        text = f"select * from {first} {kind} {second}{using}"
        return text, columns if kind == "semi join" else [*columns, *rest]

    def _test(self, sources: dict[str, list[str]]) -> str:
        """Return a condition on columns of these sources, which are by alias."""
        alias = self._pick(*sources)
        column = self._pick(*[name for name in sources[alias] if name in VALUES])
        place = f"{alias}.{column}" if alias and self._chance(0.7) else column
        value = self._pick(*VALUES[column])
        test = self._pick(
            f"{place} = {value}",
            f"{place} = {value}",
            f"{place} <> {value}",
            f"{place} in ({value})",
            f"{place} >= {value}",
        )
        if self._chance(0.15):
            return f"({test} or {self._test(sources)})"
        return f"not {test}" if self._chance(0.1) else test

    def _select(self) -> str:
        count = self.random.choice([1, 2, 2, 3, 3, 4])
        lazy = self.random.randrange(count)
        visible: dict[str, list[str]] = {}
        text, every = "", []
        for number in range(count):
            sources = LAZY if number == lazy or self._chance(0.1) else self._tables()
            table = self._pick(*sources)
            columns = (LAZY | self._tables())[table]
            alias = self._pick(table, f"x{number}")
            if alias in visible or alias in every:
                alias = f"x{number}"
            source = table if alias == table else f"{table} {self._pick('', 'as ')}{alias}"
            if table not in LAZY and self._chance(0.2):
                listed, columns = self._listed()
                source = f"({listed}) {alias}"
            every.append(alias)
            if number == 0:
                text = f"from {source}"
                visible[alias] = columns
                continue
            if self._chance(0.08):
                text += f", {source}"
                visible[alias] = columns
                continue
            kind = self._pick(*JOINS)
            condition = "" if kind == "natural join" else f" {self._on(visible, alias, columns)}"
            text += f" {kind} {source}{condition}"
            if not kind.startswith(("semi", "anti")):
                visible[alias] = columns
        tests = [self._test(visible) for _ in range(self.random.choice([0, 1, 1, 2]))]
        for test in (self._where_equal, self._in, self._exists):
            if self._chance(0.2):
                tests.append(test(visible))
        where = f" where {self._pick(*AND, ' or ').join(tests)}" if tests else ""
        shown = self._pick(
            "count(*)",
            "count(*), " + ", ".join(f"count({alias})" for alias in visible),
            self._sums(visible),
        )
        return f"select {shown} {text}{where}"

    def _sums(self, visible: dict[str, list[str]]) -> str:
        alias = self._pick(*visible)
        numbers = [name for name in visible[alias] if VALUES.get(name, ["'"])[0][0] != "'"]
        return ", ".join(["count(*)", *(f"sum({alias}.{name}) as {name}" for name in numbers)])

    def _on(self, visible: dict[str, list[str]], alias: str, columns: list[str]) -> str:
        shared = [
            name
            for name in columns
            if name in VALUES and any(name in others for others in visible.values())
        ]
        if not shared:
            return f"on {self._test({alias: columns})}"
        some = self.random.sample(shared, min(len(shared), self.random.choice([1, 2, 4])))
        if self._chance(0.5):
            return f"using ({', '.join(some)})"
        tests = []
        for name in some:
            other = self._pick(*[other for other, others in visible.items() if name in others])
            pair = [f"{other}.{name}", f"{alias}.{name}"]
            self.random.shuffle(pair)
            tests.append(f"{pair[0]} = {pair[1]}" + (" + 0" if self._chance(0.05) else ""))
        if self._chance(0.2):
            tests.append(self._test(visible | {alias: columns}))
        return "on " + self._pick(" and ", *AND, " or ").join(tests)

    def _where_equal(self, visible: dict[str, list[str]]) -> str:
        first, second = self._pick(*visible), self._pick(*visible)
        shared = [name for name in visible[first] if name in visible[second]]
        name = self._pick(*(shared or visible[first]))
        return f"{first}.{name} = {second if shared else first}.{name}"

    def _in(self, visible: dict[str, list[str]]) -> str:
        alias = self._pick(*visible)
        listed, columns = self._listed()
        shared = [name for name in columns if name in visible[alias]]
        if not shared:
            return f"exists ({listed})"
        some = self.random.sample(shared, min(len(shared), self.random.choice([1, 2, 4])))
        left = [f"{alias}.{name}" if self._chance(0.7) else name for name in some]
        right = f"select {', '.join(some)} from ({listed})"
        negated = self._pick("", "", "", "not ")
        return f"{left[0] if len(some) == 1 else '(' + ', '.join(left) + ')'} {negated}in ({right})"

    def _exists(self, visible: dict[str, list[str]]) -> str:
        alias = self._pick(*visible)
        table = self._pick(*self._tables())
        columns = self._tables()[table]
        inner = self._pick("e", "e", table, alias)
        shared = [name for name in columns if name in visible[alias] and name in VALUES]
        tests = [
            f"{self._pick(inner + '.', '')}{name} = {alias}.{name}"
            for name in shared
            if self._chance(0.7)
        ]
        tests += [self._test({inner: columns})] if self._chance(0.5) else []
        where = f" where {' and '.join(tests)}" if tests else ""
        shown = self._pick("1", "*", f"max({inner}.{columns[0]})")
        return (
            f"{self._pick('', '', '', 'not ')}exists (select {shown} from {table} {inner}{where})"
        )


class Comparison:
    """Runs queries on both databases, and counts those that are valid or read less."""

    def __init__(self, folder: Path):
        self.database, self.plain = connect_to_tables(folder)
        self.valid = self.narrowed = 0
        self.different: list[str] = []

    def run(self, seed: int, queries: int) -> None:
        generator = Generator(seed)
        for _ in range(queries):
            self.compare(generator.query())

    def compare(self, query: str) -> None:
        try:
            expected = sorted(map(repr, self.plain.sql(query).fetchall()))
        except duckdb.Error:
            expected = None
        narrowed = self.database._narrowed
        try:
            rows = sorted(map(repr, self.database.sql(query).fetchall()))
        except duckdb.Error:
            rows = None
        self.valid += expected is not None
        self.narrowed += self.database._narrowed > narrowed
        if rows != expected:
            self.different.append(query)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lib.random_queries", description=__doc__)
    parser.add_argument("queries", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Path(folder))
        comparison.run(options.seed, options.queries)
    print("\n".join(comparison.different))
    counts = f"{comparison.valid} valid, {comparison.narrowed} narrowed"
    different = len(comparison.different)
    print(f"{options.queries} queries, {counts}, {different} different")
    raise SystemExit(bool(comparison.different))


if __name__ == "__main__":
    main()
