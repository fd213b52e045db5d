"""Compare every macro of stages/lib/sql/macros.sql with a case worked out by hand."""

import json
import re
from hashlib import md5
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
import yaml

from stages.lib.core import hdf5_store
from stages.lib.sql.database import ERRORS, MACROS, Database
from stages.lib.sql.files import MEASURES
from tests import made
from tests.made import Tables
from tests.micro import ROOT


def hashed(text: str) -> int:
    """Return the second half of a text's MD5 sum as a number."""
    return int.from_bytes(md5(text.encode()).digest()[8:], "little")


FORMULAS = {
    # P(r') doubles from .1: 1; P(r) falls from .6 to .2: (.6 - .2) / .2 = 2
    "effect(p, c) from patched p, clean c": 1.5,
    "effect(c, c) from clean c": 0.0,
    "effect(dead, c) from (select * replace (0 as answer_probability) from patched) dead, clean c":
        None,
    # logits move by +3 and by -1: the difference of both by 4
    "logit_effect(p, c) from patched p, clean c": 2.0,
    "logit_effect(clean, clean) from clean": 0.0,
    # clean: (5 - 1) / (9 - 1); patched: (4 - 0) / (4 - 0), the most likely
    "normal_logit(clean) from clean": 0.5,
    "normal_logit(patched) from patched": 1.0,
    "normal_logit(flat) from (select 2 as answer_logit, 2 as mean_logit, 2 as max_logit) flat":
        None,
    "faithfulness(0.75, 0.5, 0.9)": 0.625,
    "faithfulness(1, 1, 1)": None,
    # drawn twice, not at all and once: (2 * 3 + 0 * 5 + 1 * 9) / 3
    "weighted_mean([3, 5, 9]::double[], [1, 1, 1]::double[], 3, [2, 0, 1]::double[])": 5.0,
    # the same where the last has no value: (2 * 3 + 0 * 5) / 2
    "weighted_mean([3, 5, 0]::double[], [1, 1, 0]::double[], 2, [2, 0, 1]::double[])": 3.0,
    "weighted_mean([0, 5, 0]::double[], [0, 1, 0]::double[], 1, [2, 0, 1]::double[])": None,
    "weighted_mean([0, 0, 0]::double[], [0, 0, 0]::double[], 0, [2, 0, 1]::double[])": None,
    # of 0 to 40, a tenth is left out on either side
    "percentile_interval(x, $confidence) from range(41) as t(x)": [4.0, 36.0],
    "percentile_interval(x, $confidence) from (select null::double as x)": None,
    "[larger(3, 2), larger(2, 3), larger(-1, 0), larger(2, 2)]": [3, 3, 0, 2],
    "[smaller(3, 2), smaller(2, 3), smaller(0.5, 1), smaller(2, 2)]": [2, 2, 0.5, 2],
    "majority_accuracy(x) from unnest([5, 3, null, 5, 4]) as t(x)": 0.5,
    "majority_accuracy(x) from unnest(['7', '7', '7']) as t(x)": 1.0,
    "majority_accuracy(x) from unnest([null::integer, null]) as t(x)": None,
    "majority_accuracy(x) from (select 1 as x) where x > 1": None,
    "coalesce(larger(null, 0), larger(0, null), smaller(null, 1), smaller(1, null))": None,
    "lot(7, 'add', 3)": hashed("7:add:3"),
    "lot(7, null, 'add', null, 3)": hashed("7:add:3"),
    "lot(1, 2, 3, 4, 5, 6, 7)": hashed("1:2:3:4:5:6:7"),
    "lot('pair')": hashed("pair"),
    "split_of('add', 3, 4)": "evaluation" if hashed("split:add:3:4") % 2 else "discovery",
    "split_of('add', 4, 4)": "evaluation" if hashed("split:add:4:4") % 2 else "discovery",
    "carries(57, 68)": 2,  # 7 + 8, then 5 + 6 + 1
    "carries(40, 50)": 0,
    "carries(1, 999)": 3,
    "borrows(52, 37)": 1,
    "borrows(100, 1)": 2,
    "borrows(99, 11)": 0,
    "carried(17, 38)": 5,  # 7 * 8 = 56
    "carried(10, 99)": 0,
    "slack(17, 5, 3)": 3,  # 17 + 3 and 17 - 3 give other quotients, 16, 15, 18, 19 do not
    "slack(15, 5, 3)": 1,
    "slack(19, 5, 3)": 1,
    "slack(2, 7, 0)": 5,  # below, there is nothing
    "slack(4, 0, null)": None,
    "span(47, 10)": "40..49",
    "span(0, 25)": "0..24",
    "span(50, 25)": "50..74",
}  # fmt: skip
TABLES: dict[str, list[tuple[Any, ...]]] = {
    "from answers_of('knockout')": [("s", 3, 0, 1, 2.0), ("s", 3, 1, 0, -1.5)],
    # logits above their mean of 1, divided by the largest one's 8: 4 and 3 of the circuit, 1 and 1
    # of `nothing`, 7 and 3 of `everything`
    "select * exclude subject from answers_and_ends('cut')": [
        ("add", 0, 0, 8, True, 0.875, 0.125, 0.875), ("add", 0, 1, 9, True, 0.375, 0.125, 0.375),
        ("add", 1, 0, 8, False, 0.125, 0.125, 0.875), ("add", 1, 1, 9, False, 0.125, 0.125, 0.375),
        ("add", 2, 0, 8, True, 0.5, 0.125, 0.875), ("add", 2, 1, 9, False, 0.375, 0.125, 0.375),
    ],
    "from bootstrap('evaluation')": [("s", "add", 0, [1.0, 1.0]), ("s", "add", 1, [2.0, 0.0])],
    "from roles()": [("op1", 0), ("operator", 1), ("op2", 2), ("last", 3)],
    "select heads, layer from each_layer() where subject = 's'": [(2, 0), (2, 1)],
    "select layer, head from each_head() where subject = 's'": [(0, 0), (0, 1), (1, 0), (1, 1)],
    "from head_effects()": [("s", "add", 0, 1, 3.0, 5.0), ("t", "add", 0, 1, 9.0, 9.0)],
    "from neuron_rankings()": [
        ("s", "add", 1, "last", 4, "effect", 1),
        ("s", "add", 1, "last", 4, "effect_plus_std", 3),
        ("s", "add", 1, "last", 4, "logit_effect", 2),
    ],
    "from digit_models('s', 't', 't')": [("s", 1), ("t", 2)],
    "from digit_prompts('s', 't', 't')": [
        ("s", 1, 0, "add", hashed("half:add:3:4") % 2),
        ("t", 2, 0, "subtract", hashed("half:subtract:9:5") % 2),
    ],
    # logits move by +3 and by -1
    "from digit_effects('s', 't', 't')": [
        (1, "add", hashed("half:add:3:4") % 2, 1, 7, 2.0)
    ],
    "from grouped_pairs()": [
        ("s", 0, "arithmetic", "result_varies", "add"),
        ("s", 0, "arithmetic", "result_varies", "all"),
        ("s", 1, "retrieval", "entity_varies", "all"),
    ],
    "from unit_rankings()": [
        ("s", "words", "both", "all", "neuron", 1, 8, "effect", 5, False),
        ("s", "words", "both", "all", "neuron", 1, 8, "logit_effect", 1, True),
        ("s", "words", "both", "all", "neuron", 1, 8, "size", 2, True),
    ],
}  # fmt: skip


def given() -> Tables:
    """Return a few rows of each table that macros read, with rows that they must leave out."""
    probabilities = {"answer_probability": [0.6], "counterfactual_probability": [0.1]}
    clean = pl.DataFrame(
        probabilities
        | {
            "answer_logit": [5.0],
            "counterfactual_logit": [2.0],
            "mean_logit": [1.0],
            "max_logit": [9.0],
        }
    )
    patched = clean.with_columns(
        answer_probability=0.2, counterfactual_probability=0.2, answer_logit=4.0,
        counterfactual_logit=5.0, mean_logit=0.0, max_logit=4.0,
    )  # fmt: skip
    answers = [
        ("s", "knockout", 3, 0, True, 3.0, 1.0), ("s", "knockout", 3, 1, False, 0.5, 2.0),
        ("s", "bag", 2, 1, False, 0.5, 2.0),
        ("s", "cut", 0, 0, True, 8.0, 1.0), ("s", "cut", 1, 0, False, 2.0, 1.0),
        ("s", "cut", 2, 0, True, 5.0, 1.0),
        ("s", "cut", 0, 1, True, 4.0, 1.0), ("s", "cut", 1, 1, False, 2.0, 1.0),
        ("s", "cut", 2, 1, False, 4.0, 1.0),
        ("s", "neuron", 0, 0, True, 5.0, 1.0), ("s", "neuron", 1, 0, False, 4.0, 1.0),
        ("s", "neuron", 2, 0, False, 0.0, 1.0), ("s", "neuron", 3, 0, False, 0.0, 1.0),
    ]  # fmt: skip
    columns = [
        "subject",
        "experiment",
        "intervention",
        "pair",
        "correct",
        "answer_logit",
        "mean_logit",
    ]
    runs = pl.DataFrame(answers, schema=columns, orient="row").with_columns(
        max_logit=9.0,
        # only a patch of one neuron moves it
        counterfactual_logit=pl.when(experiment="neuron", intervention=1).then(5.0).otherwise(2.0),
    )
    heads = [
        ("s", "head", "op1", 3.0, -1.0), ("s", "head", "last", 1.0, 5.0),
        ("s", "mlp", "last", 99.0, 99.0), ("t", "head", "last", 9.0, 9.0),
    ]  # fmt: skip
    columns = ["subject", "component", "position", "effect", "logit_effect"]
    effects = pl.DataFrame(heads, schema=columns, orient="row").with_columns(
        operator=pl.lit("add"), layer=0, head=1
    )
    place = {"subject": "s", "operator": "add", "layer": 1, "position": "last"}
    ranks = {"rank": 1, "rank_mean_plus_std": 3, "rank_logit": 2}
    neurons = [
        {"method": method, "neuron": neuron, "effect": effect, "logit_effect": 0.25}
        for method, neuron, effect in [
            ("exact", 4, 0.5),
            ("attribution", 4, 0.5),
            ("exact", 5, None),
        ]
    ]
    units = {
        "question": "words",
        "half": "both",
        "operator": "all",
        "component": "neuron",
        "layer": 1,
        "unit": 8,
        "subject": "s",
    }
    return {
        "clean": clean,
        "patched": patched,
        "runs": runs,
        "pairs": made.frame(
            subject=["s", "s", "t"],
            pair=[0, 1, 0],
            operator=["add", "add", "subtract"],
            answer_token=[8, 9, 8],
            split=["discovery", "evaluation", "discovery"],
            op1=[3, 1, 9],
            op2=[4, 1, 5],
        ),
        "neuron_interventions": pl.DataFrame(
            {
                "subject": "s",
                "intervention": [0, 1, 2, 3],
                "operator": [None, None, "add", None],
                "layer": [None, 1, 1, 0],
                "units": [None, [7], [8], [7]],
                "position": [None, "last", "last", "op1"],
            }
        ),
        "cut_interventions": made.frame(
            subject="s",
            intervention=[0, 1, 2, 2],
            circuit=["everything", "nothing", "circuit", "circuit"],
        ),
        "bootstrap_weights": pl.DataFrame(
            [
                ("s", "add", "evaluation", 0, [1.0, 1.0]),
                ("s", "add", "evaluation", 1, [2.0, 0.0]),
                ("s", "add", "discovery", 0, [1.0]),
            ],
            schema={
                "subject": pl.String,
                "operator": pl.String,
                "split": pl.String,
                "replicate": pl.Int32,
                "weights": pl.List(pl.Float32),
            },
            orient="row",
        ),
        "architecture": made.frame(subject=["s", "t"], layers=[2, 1], heads=[2, 3]),
        "component_effects": effects,
        "neuron_effects": pl.DataFrame([place | ranks | neuron for neuron in neurons]),
        "mediation_pairs": made.frame(
            subject="s",
            pair=[0, 1],
            task=["arithmetic", "retrieval"],
            condition=["result_varies", "entity_varies"],
            operator=["add", None],
        ),
        "unit_effects": pl.DataFrame(
            [
                units
                | {"rank": 5, "rank_logit": 1, "rank_size": 2, "effect": None, "logit_effect": -0.5}
            ]
        ),
    }


def database(folder: Path, tables: Tables) -> Database:
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    return Database({name: [folder / f"{name}.parquet"] for name in tables}, threads=1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return database(tmp_path_factory.mktemp("tables"), given())


@pytest.mark.parametrize("query", FORMULAS)
def test_a_formula_gives_what_is_worked_out_by_hand(shared: Database, query: str):
    parameters = {"confidence": 0.8} if "$confidence" in query else {}
    [(value,)] = shared.sql(f"select {query}", **parameters).fetchall()
    expected = FORMULAS[query]
    if isinstance(expected, float | list):
        expected = pytest.approx(expected, rel=1e-12)
    assert value == expected


@pytest.mark.parametrize("query", TABLES)
def test_a_table_has_these_rows(shared: Database, query: str):
    assert sorted(shared.sql(query).fetchall(), key=repr) == sorted(TABLES[query], key=repr)


def test_the_majority_baseline_is_that_of_brute_force(tmp_path: Path):
    rng = np.random.default_rng(0)
    answers = pl.DataFrame(
        {"operator": rng.integers(0, 20, 500), "answer": rng.geometric(0.3, 500)},
    )
    answers = answers.with_columns(pl.when(pl.col("answer") < 9).then("answer"))
    query = "select operator, majority_accuracy(answer) from answers group by operator"
    accuracies = dict(database(tmp_path, {"answers": answers}).sql(query).fetchall())
    assert len(accuracies) == 20
    for (operator,), rows in answers.drop_nulls().group_by("operator"):
        _, counts = np.unique(rows["answer"].to_numpy(), return_counts=True)
        assert accuracies[operator] == counts.max() / counts.sum()


def test_every_macro_has_a_case(shared: Database):
    names = set(re.findall(r"^create macro (\w+)\(", MACROS.read_text(), re.MULTILINE))
    # macros are made for the first query that may use them
    shared.sql(f"select '{' '.join(names)}'")
    query = "select function_name from duckdb_functions() where not internal"
    assert {name for (name,) in shared.sql(query).fetchall()} == names
    cases = " ".join([*FORMULAS, *TABLES])
    assert names <= set(re.findall(r"(\w+)\(", cases))


def test_a_macro_is_no_table_and_hides_no_function(shared: Database):
    assert shared.tables() == sorted(given())
    twice = (
        "select function_name from duckdb_functions() group by function_name having "
        "bool_or(internal) and not bool_and(internal)"
    )
    assert shared.sql(twice).fetchall() == []


def test_a_macro_that_reads_a_table_needs_it(tmp_path: Path):
    bare = database(tmp_path, {"runs": pl.DataFrame({"pair": [0]})})
    assert bare.sql("select carries(57, 68)").fetchall() == [(2,)]
    with pytest.raises(ERRORS, match=r"There is no table bootstrap_weights here\. The stage "):
        bare.sql("from bootstrap('evaluation')")
    with pytest.raises(ERRORS, match="experiment"):
        bare.sql("from answers_of('knockout')")


def test_macros_give_the_same_rows_twice_and_read_no_lazy_table(shared: Database):
    """Keys of a join may come from a macro, of which narrowing reads the name alone."""
    query = "select function_name, macro_definition from duckdb_functions() where not internal"
    functions = {"random", "uuid", "now", "first", "last", "any_value", "mode", "approx_quantile"}
    for name, text in shared.sql(query).fetchall():
        words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", text.lower())))
        assert not words & {"limit", "tablesample", *functions, *MEASURES}, name


def test_a_lazy_table_is_narrowed_by_a_macro(tmp_path: Path):
    with hdf5_store.writing(tmp_path / "add.h5") as file:
        axes, attributes = {"neuron": 20, "op1": 4, "op2": 4}, {"subject": "s", "operator": "add"}
        writer = hdf5_store.LayerWriter(
            file,
            [0, 1],
            axes,
            "float16",
            (2, 4, 4),
            attributes,
            columns={"result": np.zeros((4, 4), int)},
        )
        for layer in (0, 1):
            writer.write(layer, 0, np.arange(320).reshape(20, 4, 4) + layer)
    given()["neuron_effects"].write_parquet(tmp_path / "neuron_effects.parquet")
    both = Database(
        {
            "activations": [tmp_path / "add.h5"],
            "neuron_effects": [tmp_path / "neuron_effects.parquet"],
        },
        threads=1,
    )
    query = (
        "select layer, neuron, avg(activation) from activations join neuron_rankings() using "
        "(operator, layer, neuron) where rank = 1 group by all"
    )
    assert both.sql(query).fetchall() == [(1, 4, 4 * 16 + 7.5 + 1)]
    assert both.lazy["activations"].reads.total() == 1


def functions(query: str) -> set[str]:
    """Return the names of all functions that a query calls, from its parse tree."""
    [[text]] = duckdb.execute(
        "select json_serialize_sql($query::varchar)", {"query": query}
    ).fetchall()
    tree = json.loads(text)
    assert not tree["error"], tree
    names: set[str] = set()
    left: list[Any] = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            names.add(part.get("function_name"))
            left += part.values()
        elif isinstance(part, list):
            left += part
    return names


def test_no_query_uses_a_function_that_passes_over_nulls():
    """greatest(x, 0) is 0 for a null x: an unknown end of an interval would become a number."""
    queries = {
        path.name: path.read_text() for path in (ROOT / "stages").rglob("*.sql") if path != MACROS
    }
    for path in (ROOT / "stages").rglob("claims.yaml"):
        queries |= {
            entry["claim"]: entry["query"]
            for entry in yaml.safe_load(path.read_text())
            if "query" in entry
        }
    used = {name: functions(query) & {"greatest", "least"} for name, query in queries.items()}
    assert len(used) > 100
    assert {name for name, several in used.items() if several} == set()
    assert functions("select 1 + (select max(greatest(a, 0)) from t)") >= {"greatest", "max"}
