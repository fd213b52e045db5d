"""Joins with lazy tables give the rows of plain DuckDB, and read only the chunks of their keys."""

import pytest

from tests.lib.random_queries import Comparison

QUERIES = 250
WHOLE = {"activations": 2 * 2 * 2 * 6, "value_logits": 2 * 2 * 6}  # chunks, one a neuron
LAST = "effects where position = 'last'"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return Comparison(tmp_path_factory.mktemp("data"))


def test_random_joins_give_the_rows_of_plain_duckdb(comparison: Comparison):
    comparison.run(seed=36, queries=QUERIES)
    assert comparison.different == []
    assert comparison.valid > QUERIES / 2
    assert comparison.narrowed > QUERIES / 8


ON = (
    "a.subject = e.subject and a.operator = e.operator and a.layer = e.layer and e.neuron = "
    "a.neuron"
)
ALL = "(subject, operator, layer, neuron)"
SHAPES = {
    "using": f"from activations join effects using {ALL} where position = 'last'",
    "on": f"from effects e join activations a on {ON} where e.position = 'last'",
    "comma": f"from activations a, effects e where {ON} and e.position = 'last'",
    "subquery": f"from activations join (from {LAST}) using {ALL}",
    "semi": f"from activations semi join (from {LAST}) using {ALL}",
    "in": f"from activations where {ALL} in (select subject, operator, layer, neuron from {LAST})",
    "exists": (
        f"from activations a where exists (select 1 from {LAST.replace(' where', ' e where')} and "
        f"{ON})"
    ),
    "capitals": f"from Activations A join EFFECTS e using {ALL} where E.position = 'last'",
    "before a semi join": (
        f"from effects e join activations a using {ALL} semi join layers l using (layer) where "
        f"e.position = 'last'"
    ),
    "two lazy tables": "from activations a join value_logits v using (subject, layer, neuron) "
    f"join effects e on {ON} where e.position = 'last'",
}


def chunks(comparison: Comparison, query: str, table: str = "activations") -> int:
    """Return the number of chunks that a query reads."""
    reads = comparison.database.lazy[table].reads
    reads.clear()
    comparison.database.sql(query).fetchall()
    return reads.total()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_join_reads_only_the_neurons_of_its_keys(comparison: Comparison, shape: str):
    [(keys,)] = comparison.plain.sql(
        f"select count(distinct {ALL}) from {LAST} and layer in (select layer from layers)"
    ).fetchall()
    query = f"select count(*) {SHAPES[shape]}"
    assert 0 < keys < WHOLE["activations"]
    assert chunks(comparison, query) == keys
    assert comparison.database.sql(query).fetchall() == comparison.plain.sql(query).fetchall()


def test_a_lazy_table_is_narrowed_by_way_of_another(comparison: Comparison):
    [(keys,)] = comparison.plain.sql(
        f"select count(distinct (subject, layer, neuron)) from {LAST}"
    ).fetchall()
    assert (
        chunks(comparison, f"select count(*) {SHAPES['two lazy tables']}", "value_logits")
        == keys
        < WHOLE["value_logits"]
    )


def test_a_join_of_three_tables_is_right_and_narrow(comparison: Comparison):
    """USING means the sources before it, not labels, whose operator differs."""
    query = (
        "select count(*) from cells c join activations a using (operator, op1, op2) "
        "join labels l on l.subject = a.subject and l.layer = a.layer and l.neuron = a.neuron "
        "where c.operator = 'add' and l.operator = 'divide' and l.heuristic = 'list'"
    )
    [(keys,)] = comparison.plain.sql(
        "select count(distinct (subject, layer, neuron)) from labels where operator = 'divide' and "
        "heuristic = 'list'"
    ).fetchall()
    rows = comparison.database.sql(query).fetchall()
    assert rows == comparison.plain.sql(query).fetchall()
    assert rows[0][0] > 0
    assert 0 < chunks(comparison, query) <= keys


@pytest.mark.parametrize(
    "keys",
    [
        "from effects order by all limit 2",
        "from effects using sample 2",
        "from effects where random() < 2",
        "select distinct on (layer) * from effects",
        "select * from effects qualify row_number() over (order by rank) < 3",
        (
            "select subject, operator, layer, neuron from effects group by all having "
            "sum(rank::double) > 0"
        ),
        "select subject, operator, layer, any_value(neuron) as neuron from effects group by all",
    ],
)
def test_keys_that_another_run_may_not_give_are_not_used(comparison: Comparison, keys: str):
    assert (
        chunks(comparison, f"select count(*) from activations join ({keys}) using {ALL}")
        == WHOLE["activations"]
    )


@pytest.mark.parametrize(
    "source",
    [
        f"cells c, effects e join activations a using {ALL}",  # a comma binds weaker than join
        (
            "cells c anti join effects e using (operator) join activations a using (operator, op1, "
            "op2)"
        ),
        "effects e left join activations a on a.neuron = e.neuron and a.layer = 0",
        (
            "(from effects right join labels using (layer) join layers using (layer)) t join "
            "activations a using (layer)"
        ),
        (
            "(from effects full join labels using (subject, layer) join layers using (subject, "
            "layer)) t join activations a using (layer)"
        ),
        "effects e natural join activations a",
        (
            "effects e left join labels l using (layer) join activations a using (layer) where "
            "l.layer is null"
        ),
        "effects e semi join layers l using (layer) join activations a using (subject, layer)",
        "effects e join activations a on a.neuron = e.neuron or a.layer = e.layer",
        "(effects e join labels l using (layer)) join activations a on a.layer = e.rank",
        (
            "activations a where exists (select 1 from (effects a join labels l using (layer)) "
            "where a.neuron = l.neuron)"
        ),
        "activations a where exists (select 1 from effects a where a.neuron = a.rank)",
        (
            "(with effects as (select 0 as layer) from effects) t join activations a using (layer) "
            "join effects e using (neuron)"
        ),
    ],
)
def test_names_mean_what_they_mean_in_plain_duckdb(comparison: Comparison, source: str):
    query = f"select count(*) from {source}"
    assert comparison.database.sql(query).fetchall() == comparison.plain.sql(query).fetchall()
