"""The real cells.sql and facts.sql against brute force."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.dictionary import tables
from tests.corpus.corpora import NO_TABLES, table
from tests.micro import ROOT

CALCULATE = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b,
}
CELL = ["operator", "op1", "op2"]


def brute_force(largest_operand: int, largest_answer: int) -> set[tuple]:
    cells = set()
    operands = range(largest_operand + 1)
    for operator, a, b in product(CALCULATE, operands, operands):
        if operator != "divide" or min(a, b) > 0:
            result = CALCULATE[operator](a, b)
            if 0 <= result <= largest_answer:
                cells.add((operator, a, b, result))
    return cells


@given(st.integers(1, 25), st.integers(1, 60))
def test_the_grid_is_every_cell_and_no_other(largest_operand: int, largest_answer: int):
    cells = table("cells", largest_operand=largest_operand, largest_answer=largest_answer)
    assert set(cells.drop("split").rows()) == brute_force(largest_operand, largest_answer)
    assert not cells.select(CELL).is_duplicated().any()
    assert cells.equals(cells.sort(CELL))


def test_the_studys_grid_has_its_published_size():
    cells = table("cells")
    assert dict(cells["operator"].value_counts().rows()) == {
        "add": 90_000,
        "subtract": 45_150,
        "multiply": 5_784,
        "divide": 89_401,
    }
    assert (cells["split"] == "held-out").mean() == pytest.approx(0.1, abs=0.005)


def test_the_split_depends_on_the_seed_and_on_nothing_else():
    small = {"largest_operand": 20, "largest_answer": 99}
    first = table("cells", **small)
    wider = table("cells", **small | {"largest_operand": 25})
    other = table("cells", **small, seed=1)
    assert set(first.rows()) <= set(wider.rows())
    assert not first.equals(other)
    none_held_out = table("cells", **small, held_out_percent=0)
    assert set(none_held_out["split"]) == {"train"}


def test_facts_relate_each_entity_to_one_object():
    facts = table("facts", countries=40, people=60, things=40, languages=12, kinds=10, seed=0)
    assert dict(facts["relation"].value_counts().rows()) == {
        "capital": 40,
        "capital_of": 40,
        "kind": 40,
        "born_in": 60,
        "native_language": 60,
        "died_in": 60,
    }
    assert not facts.select("relation", "entity").is_duplicated().any()
    capitals = facts.filter(relation="capital").select("entity", "object")
    countries = facts.filter(relation="capital_of").select("object", "entity")
    assert set(capitals.rows()) == set(countries.rows())


def test_operands_results_and_sizes_are_integers_in_every_table():
    """A product of two SMALLINTs overflows."""
    operands = {"op1", "op2", "result", "number", "frequency1", "frequency2"}
    operands |= {"counterfactual_op1", "counterfactual_op2", "counterfactual_result"}
    numbers = 0
    for described in tables(ROOT / "stages").values():
        for name, (kind, _) in described.columns.items():
            if described.name == "architecture" or name in operands:
                assert "SMALLINT" not in kind, (described.name, name)
                assert "TINYINT" not in kind, (described.name, name)
                numbers += 1
    assert numbers > 20


def test_operands_multiply_without_overflow():
    cells = (ROOT / "stages/corpus/cells.sql").read_text()
    values = {"largest_operand": 999, "largest_answer": 999, "held_out_percent": 0, "seed": 0}
    [(largest,)] = NO_TABLES.sql(f"select max(op1 * op2) from ({cells})", **values).fetchall()
    assert largest == 999 * 999
