"""SQL over lazy stores gives the rows of the materialised table, and reads only needed chunks."""

import re
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.lib.core import hdf5_store
from stages.lib.sql.database import ERRORS, Database, QueryError, connect
from stages.lib.sql.lazy.group_by import summed

NEURONS, SIDE, CHUNK = 20, 12, (8, 5, 12)
BLOCKS = 3  # of rows, ceil(12 / 5)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Make stores of two subjects, two operators and layers 0 and 2, and a table of few neurons."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for subject in ("a", "b"):
        for operator in ("add", "divide"):
            with hdf5_store.writing(
                folder / subject / "store/activations" / f"{operator}.h5"
            ) as file:
                axes = {"neuron": NEURONS, "op1": SIDE, "op2": SIDE}
                attributes = {"subject": subject, "operator": operator}
                result = rng.integers(-1, 9, (SIDE, SIDE))
                writer = hdf5_store.LayerWriter(
                    file, [0, 2], axes, "float16", CHUNK, attributes, columns={"result": result}
                )
                for layer in (0, 2):
                    for first in range(0, SIDE, 5):
                        writer.write(
                            layer, first, rng.normal(size=(NEURONS, min(5, SIDE - first), SIDE))
                        )
        with hdf5_store.writing(folder / subject / "store/value_logits.h5") as file:
            writer = hdf5_store.LayerWriter(
                file,
                [0, 2],
                {"neuron": NEURONS, "number": 30},
                "float32",
                (4, 30),
                {"subject": subject},
            )
            for layer in (0, 2):
                writer.write(layer, 0, rng.normal(size=(NEURONS, 30)))
    rows = [
        ("a", "add", 0, 3, 1),
        ("a", "add", 2, 3, 2),
        ("a", "divide", 0, 19, 3),
        ("b", "add", 2, 8, 11),
        ("b", "add", 2, 9, 12),
    ]
    top = pl.DataFrame(
        rows, schema=["subject", "operator", "layer", "neuron", "rank"], orient="row"
    )
    top = top.with_columns(pl.col("layer").cast(pl.Int16), pl.col("neuron").cast(pl.Int32))
    top.write_parquet(folder / "neurons/neuron_effects.parquet", mkdir=True)
    return connect(folder, threads=1)


@pytest.fixture(scope="module")
def whole(database: Database) -> duckdb.DuckDBPyConnection:
    """Return the same tables, materialised in an ordinary DuckDB."""
    other = duckdb.connect()
    for name in database.tables():
        frame = database.sql(f"from {name}").to_arrow_table()
        other.register("frame", frame)
        other.execute(f"create table {name} as from frame")
        other.unregister("frame")
    return other


def chunks(database: Database, query: str, table: str = "activations", **parameters) -> int:
    """Return the number of chunks that a query reads."""
    database.lazy[table].reads.clear()
    database.sql(query, **parameters).fetchall()
    return database.lazy[table].reads.total()


def test_the_whole_table_has_every_row(whole: duckdb.DuckDBPyConnection, database: Database):
    assert (
        whole.sql(
            "select count(*), count(distinct (subject, operator, layer, neuron, op1, op2)) from "
            "activations"
        ).fetchall()[0]
        == (2 * 2 * 2 * NEURONS * SIDE * SIDE,) * 2
    )
    [stored] = whole.sql(
        "select activation from activations where (subject, operator, layer, neuron, op1, op2) = "
        "('b', 'add', 2, 7, 6, 11)"
    ).fetchall()
    part = next(
        p
        for p in database.lazy["activations"].parts
        if p.constants == {"subject": "b", "operator": "add"}
    )
    assert stored[0] == part.store.read(2, slice(7, 8), slice(6, 7))[0, 0, 11]


comparison = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
leaf = st.one_of(
    st.builds(
        lambda c, op, v: f"{c} {op} {v}",
        st.sampled_from(["layer", "neuron", "op1", "op2", "result"]),
        comparison,
        st.integers(-1, 21),
    ),
    st.builds(
        lambda c, vs: f"{c} in ({', '.join(map(str, vs))})",
        st.sampled_from(["layer", "neuron", "op1", "result"]),
        st.lists(st.integers(0, 20), min_size=1, max_size=4),
    ),
    st.builds(
        lambda c, a, b: f"{c} between {a} and {b}",
        st.sampled_from(["neuron", "op1", "op2"]),
        st.integers(0, 19),
        st.integers(0, 19),
    ),
    st.builds(
        lambda c, op, v: f"{c} {op} '{v}'",
        st.sampled_from(["subject", "operator"]),
        comparison,
        st.sampled_from(["a", "b", "add", "x"]),
    ),
    st.builds(lambda op, v: f"activation {op} {v}", comparison, st.floats(-2, 2, allow_nan=False)),
    st.sampled_from(
        [
            "result is null",
            "result is not null",
            "neuron % 3 = 1",
            "op1 = op2",
            "subject like 'a%'",
            "layer is null",
        ]
    ),
)
predicates = st.recursive(
    leaf,
    lambda p: st.one_of(
        st.builds("({} and {})".format, p, p),
        st.builds("({} or {})".format, p, p),
        st.builds("(not {})".format, p),
    ),
    max_leaves=6,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(predicates)
def test_any_predicate_gives_the_rows_of_the_materialised_table(
    database: Database, whole: duckdb.DuckDBPyConnection, predicate: str
):
    query = (
        f"select subject, operator, layer, neuron, op1, op2, result, activation from activations "
        f"where {predicate} order by all"
    )
    assert database.sql(query).fetchall() == whole.sql(query).fetchall()


ALL = 2 * 2 * 2 * 3 * BLOCKS  # subjects, operators, layers, chunks of neurons, blocks of rows


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("true", ALL),
        ("subject = 'a'", ALL // 2),
        ("subject = 'a' and operator = 'add' and layer = 2", ALL // 8),
        ("subject = 'a' and operator = 'add' and layer = 2 and neuron = 9", BLOCKS),
        ("subject = 'a' and operator = 'add' and layer = 2 and neuron = 9 and op1 = 7 and op2 = 3",
        1),
        ("neuron in (1, 2, 7)", 8 * BLOCKS),
        ("neuron in (1, 8, 19)", 8 * 3 * BLOCKS),
        ("op1 between 4 and 6", ALL * 2 // 3),
        ("op1 >= 10", ALL // 3),
        ("neuron < 8 and op1 < 5", 8),
        ("layer <> 0 and not (neuron >= 8)", 4 * BLOCKS),
        ("(layer = 0 and neuron = 1 and op1 = 5) or (layer = 2 and neuron = 19 and op1 = 11)",
        4 + 4),
        ("layer = 1", 0),
        ("subject = 'nobody'", 0),
        ("op1 > 11", 0),
    ],
)  # fmt: skip
def test_a_filter_reads_only_the_chunks_it_touches(
    database: Database, predicate: str, expected: int
):
    assert (
        chunks(database, f"select count(activation) from activations where {predicate}") == expected
    )


SUMMED = [
    "select layer, neuron, avg(activation) from activations group by layer, neuron order by all",
    (
        "select a.neuron, avg(a.activation) as mean, count(*) as n from activations a where layer "
        "= 2 group by all having count(*) > 3 order by mean desc, neuron limit 5"
    ),
    (
        "select subject, operator, min(activation), max(activation), sum(activation), "
        "count(activation) from activations group by 1, 2 order by 1, 2"
    ),
    (
        "select avg(activation) from activations where neuron in (1, 9) and not (subject = 'a' or "
        "layer = 0)"
    ),
    "select count(*), avg(activation) from activations where layer = 7",
    (
        "select round(avg(activation), 3) as mean, -max(activation) from activations where neuron "
        "between 3 and $last group by operator order by operator"
    ),
    "select neuron % 2 as odd, avg(logit) from value_logits group by odd order by odd",
    (
        "select neuron, max(logit) - min(logit) as spread from value_logits where subject = 'b' "
        "group by neuron order by spread desc, neuron"
    ),
]
SUMMED += [
    "select layer, count(*) as total, max(activation) as activation from activations group by "
    "layer having count(*) > 1 order by activation, total"
]
NOT_SUMMED = [
    "select op1, avg(activation) from activations group by op1 order by op1",
    (
        "select layer, avg(activation) from activations where result is not null group by layer "
        "order by layer"
    ),
    "select layer, avg(activation * 2) from activations group by layer order by layer",
    (
        "select layer, avg(activation) filter (where op1 = 3) from activations group by layer "
        "order by layer"
    ),
    (
        "select layer, count(distinct neuron), max(neuron) from activations group by layer order "
        "by layer"
    ),
    "select layer, count(result) from activations group by layer order by layer",
    "select distinct layer from activations order by layer",
    (
        "select layer, avg(activation) over (partition by neuron) as m from activations where op1 "
        "= 1 and op2 = 2 order by all"
    ),
    "select avg(m) from (select max(activation) as m from activations group by neuron, op1)",
    (
        "select neuron, op2 as layer, avg(activation) from activations group by all order by all "
        "limit 9"
    ),
    (
        "select layer as result, avg(activation) from activations group by layer, result "
        "order by all"
    ),
    (
        "select layer as op1, sum(activation) as activation from activations "
        "group by layer, activation order by all"
    ),
    (
        "select neuron, avg(a.activation) from activations a(subject, operator, neuron, layer) "
        "where layer = 3 group by all order by all"
    ),
]


@pytest.mark.parametrize(
    ("query", "sums"), [(q, True) for q in SUMMED] + [(q, False) for q in NOT_SUMMED]
)
def test_aggregates_of_whole_neurons_come_from_sums(
    database: Database, whole: duckdb.DuckDBPyConnection, query: str, sums: bool
):
    parameters = {"last": 8} if "$last" in query else {}
    ours, theirs = database.sql(query, **parameters), whole.sql(query, params=parameters or None)
    database.sql("from activations limit 0")
    columns = {name: table.columns.names for name, table in database.lazy.items()}
    assert (summed(query, columns, theirs.columns) is not None) == (sums and "%" not in query)
    assert ours.columns == theirs.columns
    assert list(map(str, ours.types)) == list(map(str, theirs.types))
    rows = ours.fetchall()
    assert rows or "layer = 7" in query
    for mine, other in zip(rows, theirs.fetchall(), strict=True):
        assert [
            pytest.approx(v, rel=1e-9, abs=1e-9) if isinstance(v, float) else v for v in other
        ] == list(mine)


keys = st.lists(
    st.sampled_from(["subject", "operator", "layer", "neuron"]), min_size=1, max_size=4, unique=True
)
aggregates = st.lists(
    st.sampled_from(
        ["avg(activation)", "sum(activation)", "min(activation)", "max(activation)", "count(*)"]
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(keys, aggregates, predicates)
def test_any_aggregate_equals_that_of_the_materialised_table(
    database: Database, whole: duckdb.DuckDBPyConnection, keys, aggregates, predicate
):
    listed = ", ".join(keys)
    query = (
        f"select {listed}, {', '.join(aggregates)} from activations where {predicate} group by "
        f"{listed} order by {listed}"
    )
    mine, other = database.sql(query).fetchall(), whole.sql(query).fetchall()
    assert len(mine) == len(other)
    for a, b in zip(mine, other, strict=True):
        assert list(a) == [
            pytest.approx(v, rel=1e-9, abs=1e-9) if isinstance(v, float) else v for v in b
        ]


TOP = "neuron_effects where rank <= 10"  # (a, add, 0, 3), (a, add, 2, 3), (a, divide, 0, 19)
JOINS = [
    (
        f"select count(activation), sum(op1) from activations join (select * from {TOP}) using "
        f"(subject, operator, layer, neuron)"
    ),
    (
        "select count(activation), sum(rank) from activations join neuron_effects using (subject, "
        "operator, layer, neuron) where rank <= 10"
    ),
    (
        "select count(activation), max(rank) from activations a join neuron_effects e using "
        "(subject, operator, layer, neuron) where e.rank <= 10 and op1 < 99"
    ),
    (
        f"with top as (from {TOP}) select count(activation) from activations semi join top using "
        f"(subject, operator, layer, neuron)"
    ),
    f"with top as (from {TOP}), again as (from top) select count(activation) from activations a "
    f"join again t on a.subject = t.subject "
    "and t.operator = a.operator and a.layer = t.layer and a.neuron = t.neuron",
    (
        f"select count(activation) from activations where (subject, operator, layer, neuron) in "
        f"(select subject, operator, layer, neuron from {TOP})"
    ),
    "select count(activation) from activations a, neuron_effects e where a.subject = e.subject and "
    "a.operator = e.operator "
    "and a.layer = e.layer and a.neuron = e.neuron and e.rank <= 10",
    "select count(activation) from activations a where exists (select 1 from neuron_effects e "
    "where e.subject = a.subject "
    "and e.operator = a.operator and e.layer = a.layer and e.neuron = a.neuron and e.rank <= 10)",
    (
        "select count(activation) from neuron_effects e join activations a using (subject, "
        "operator, layer, neuron) where e.rank <= $most"
    ),
    (
        "select 'ünï' as ä, count(activation) from neuron_effects join activations using (subject, "
        "operator, layer, neuron) where rank <= 10"
    ),
]  # fmt: skip


@pytest.mark.parametrize("query", JOINS)
def test_a_join_with_a_short_list_reads_only_its_neurons(
    database: Database, whole: duckdb.DuckDBPyConnection, query: str
):
    parameters = {"most": 10} if "$most" in query else {}
    assert chunks(database, query, **parameters) == 3 * BLOCKS
    assert (
        database.sql(query, **parameters).fetchall()
        == whole.sql(query, params=parameters or None).fetchall()
    )


OTHERS = [
    (
        "select count(activation) from neuron_effects e left join activations a using (subject, "
        "operator, layer, neuron) where e.rank <= 10"
    ),
    (
        "select count(*) from activations left join neuron_effects using (subject, operator, "
        "layer, neuron)"
    ),
    (
        "select count(*) from activations anti join neuron_effects using (subject, operator, "
        "layer, neuron)"
    ),
    (
        "select count(*) from activations full join neuron_effects using (subject, operator, "
        "layer, neuron)"
    ),
    (
        "select count(*) from neuron_effects right join activations using (subject, operator, "
        "layer, neuron)"
    ),
    "select count(*) from activations where layer in (select layer from neuron_effects) or op1 = 3",
    "select count(*) from activations where neuron not in (select neuron from neuron_effects)",
    (
        "with t(neuron, layer) as (select layer, neuron from neuron_effects) select count(*) from "
        "activations join t using (neuron, layer)"
    ),
    (
        "with activations as (select 1 as layer) select count(*) from activations join "
        "neuron_effects using (layer)"
    ),
    (
        "with Activations as (select 2 as layer, 3 as neuron) select count(*) from activations "
        "join neuron_effects using (layer, neuron)"
    ),
    (
        "select count(*) from activations a where exists (select max(neuron) from neuron_effects e "
        "where e.neuron = a.neuron)"
    ),
    (
        "select count(*) from activations a where exists (select 1 from neuron_effects e where "
        "e.neuron = a.neuron having count(*) = 0)"
    ),
    (
        "with Neuron_Effects as (select 7 as neuron) select count(*) from activations join "
        "neuron_effects using (neuron)"
    ),
    (
        "select count(*) from activations as a(subject, operator, neuron, layer) join "
        "neuron_effects e on a.layer = e.neuron"
    ),
    (
        "select count(*) from activations a join activations b using (subject, operator, layer, "
        "neuron, op1, op2) where b.neuron = 3"
    ),
    (
        "select count(*) from neuron_effects e join value_logits v using (subject, layer, neuron) "
        "join activations a using (subject, operator, layer, neuron)"
    ),
    "select count(*) from activations where neuron = (select max(neuron) from neuron_effects)",
    (
        "select count(*) from (select * from activations) join neuron_effects using (subject, "
        "operator, layer, neuron)"
    ),
    (
        "select count(*) from activations a join neuron_effects e on a.neuron = e.neuron or "
        "a.layer = e.layer"
    ),
    "select count(*) from activations a join neuron_effects e on a.neuron = e.neuron + 1",
]


@pytest.mark.parametrize("query", OTHERS)
def test_every_other_join_gives_the_rows_of_the_materialised_table(
    database: Database, whole: duckdb.DuckDBPyConnection, query: str
):
    assert database.sql(query).fetchall() == whole.sql(query).fetchall()


# Keys of other types than the stores', and the chunks that are read. Keys that DuckDB converts to
# compare do not narrow what is read; the others do.
KINDS = {
    "operator as an ENUM": (
        "subject, operator::enum('divide', 'add', 'other') as operator, layer, neuron",
        3 * BLOCKS,
    ),
    "all numbers as DOUBLE": (
        "subject, operator, layer::double as layer, neuron::double as neuron",
        3 * BLOCKS,
    ),
    "layer as text": ("subject, operator, layer::varchar as layer, neuron", 4 * BLOCKS),
    "neuron as text": ("subject, operator, layer, neuron::varchar as neuron", 9 * BLOCKS),
    "neuron as padded text": (
        "subject, operator, layer, lpad(neuron::varchar, 5, '0') as neuron",
        ALL,
    ),
    "neuron as HUGEINT": ("subject, operator, layer, neuron::hugeint as neuron", 9 * BLOCKS),
    "layer as DECIMAL": ("subject, operator, layer::decimal(9, 2) as layer, neuron", 4 * BLOCKS),
    "layer as BOOLEAN": ("subject, operator, layer < 1 as layer, neuron", 4 * BLOCKS),
    "text without regard to case": (
        "upper(subject) collate nocase as subject, operator, layer, neuron",
        ALL,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_another_kind_match_as_they_do_in_the_materialised_table(
    database: Database, whole: duckdb.DuckDBPyConnection, kind: str
):
    columns, expected = KINDS[kind]
    query = (
        f"select count(*), sum(op1) from activations join (select {columns} from {TOP}) using "
        f"(subject, operator, layer, neuron)"
    )
    assert database.sql(query).fetchall() == whole.sql(query).fetchall()
    assert database.sql(query).fetchall()[0][0] > 0
    assert chunks(database, query) == expected


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["divide", "a", "add"])])
def test_text_keys_of_a_polars_table_match_whatever_their_type(tmp_path: Path, kind: pl.DataType):
    """A user's own table may store text as Categorical or Enum."""
    for operator in ("add", "divide"):
        with hdf5_store.writing(tmp_path / f"a/store/activations/{operator}.h5") as file:
            axes = {"neuron": 4, "op1": 3, "op2": 3}
            attributes = {"subject": "a", "operator": operator}
            writer = hdf5_store.LayerWriter(file, [0], axes, "float16", (1, 3, 3), attributes)
            writer.write(0, 0, np.ones((4, 3, 3)))
    listed = pl.DataFrame(
        {"subject": ["a", "a"], "operator": ["add", "divide"], "layer": [0, 0], "neuron": [1, 3]}
    )
    listed.with_columns(pl.col("subject", "operator").cast(kind)).write_parquet(
        tmp_path / "a/neurons/chosen.parquet", mkdir=True
    )
    database = connect(tmp_path)
    query = (
        "select operator, neuron, count(*) from activations join chosen using (subject, operator, "
        "layer, neuron) group by all order by all"
    )
    assert database.sql(query).fetchall() == [("add", 1, 9), ("divide", 3, 9)]
    assert chunks(database, query) == 2


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ("select * from neuron_effects order by random() limit 2", 2),
        ("select distinct on (layer) * from neuron_effects", 2),
        (
            (
                "select subject, operator, layer, mode(neuron) as neuron from neuron_effects where "
                "rank > 10 group by all"
            ),
            1,
        ),
        (
            (
                "select subject, operator, layer, arbitrary(neuron) as neuron from neuron_effects "
                "where rank > 10 group by all"
            ),
            1,
        ),
    ],
)
def test_a_list_that_may_differ_next_time_is_not_resolved(database: Database, keys: str, rows: int):
    query = (
        f"select count(*) from activations join ({keys}) using (subject, operator, layer, neuron)"
    )
    assert chunks(database, query) == ALL
    assert database.sql(query).fetchall() == [(rows * SIDE * SIDE,)]


def test_value_logits_are_lazy_too(database: Database):
    query = (
        "select count(logit) from value_logits join neuron_effects using (subject, layer, neuron) "
        "where rank = 1"
    )
    assert chunks(database, query, "value_logits") == 1
    assert database.sql(query).fetchall() == [(30,)]


def test_relations_become_polars_frames(database: Database):
    frame = database.sql(
        (
            "select layer, avg(activation) as mean from activations where neuron = $n group by "
            "layer order by layer"
        ),
        n=3,
    ).pl()
    assert frame.columns == ["layer", "mean"]
    assert frame["layer"].to_list() == [0, 2]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("copy (select 1) to 'x.csv'", "only reads: COPY"),
        ("create table t as select 1", "only reads: CREATE"),
        ("attach 'x.db'", "only reads: ATTACH"),
        ("set enable_external_access = true", "only reads: SET"),
        ("explain analyze copy (select 1) to 'x.csv'", "only reads: COPY"),
        ("select 1; drop view neuron_effects", "expected one statement, found 2"),
        ("", "expected one statement, found 0"),
        ("select $layer", r"\$layer has no value"),
    ],
)
def test_a_query_cannot_write(database: Database, query: str, message: str):
    with pytest.raises(QueryError, match=message):
        database.sql(query)


def test_a_parameter_the_query_lacks_is_named(database: Database):
    with pytest.raises(QueryError, match=r"\$wrong is not in the query"):
        database.sql("select 1", wrong=2)


@pytest.mark.parametrize(
    "function",
    ["read_text('/etc/passwd')", "read_text('params.yaml')", "'/etc/passwd'", "glob('/*')"],
)
def test_a_query_cannot_reach_files(database: Database, function: str):
    with pytest.raises(ERRORS):
        database.sql(f"select * from {function}").fetchall()


def test_a_damaged_store_is_named_by_the_query_that_meets_it(tmp_path: Path):
    path = tmp_path / "s/store/activations/add.h5"
    with hdf5_store.writing(path) as file:
        writer = hdf5_store.LayerWriter(
            file,
            [0],
            {"neuron": 4, "op1": 8, "op2": 8},
            "float32",
            (4, 8, 8),
            {"subject": "s", "operator": "add"},
        )
        writer.write(0, 0, np.ones((4, 8, 8)))
    content = bytearray(path.read_bytes())
    place = content.rindex(np.ones(64, np.float32).tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(Exception, match=r"add\.h5.*dataset layers/0"):
        connect(tmp_path).sql("select sum(activation) from activations").fetchall()


def test_a_foreign_store_among_those_of_a_table_is_named(tmp_path: Path):
    """It must not add rows without subject and operator to the table."""
    folder = tmp_path / "s/store/activations"
    axes = {"neuron": 4, "op1": 3, "op2": 3}
    for name, attributes in (("add", {"subject": "s", "operator": "add"}), ("other", {})):
        with hdf5_store.writing(folder / f"{name}.h5") as file:
            writer = hdf5_store.LayerWriter(file, [0], axes, "float32", (4, 3, 3), attributes)
            writer.write(0, 0, np.ones((4, 3, 3)))
    with pytest.raises(
        hdf5_store.StoreError,
        match=r"other\.h5 has neuron, op1, op2; .*add\.h5 has subject, operator, neuron, op1, op2",
    ):
        connect(tmp_path).sql("select count(*) from activations")


@pytest.mark.parametrize(
    "query",
    [
        "explain select 1",
        "EXPLAIN ANALYZE select 1",
        "explain (format json) select 1",
        " explain (analyze) select 1",
        "describe select 1",
    ],
)
def test_plans_are_shown(query: str):
    assert Database({}).sql(query).fetchall()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("explain (analyze) copy (select 1) to 'x'", "COPY is not allowed, SELECT is"),
        ("explain analyze create table t (a int)", "CREATE is not allowed, SELECT is"),
        ("update extensions", "SELECT is allowed, this is not"),
        ("pivot (select 'a' as k, 1 as v) on k using sum(v)", "PIVOT without a list of values"),
    ],
)
def test_what_is_no_select_is_refused_in_a_sentence(query: str, message: str):
    with pytest.raises(QueryError, match=re.escape(message)):
        Database({}).sql(query)
