"""The real cells.sql and facts.sql against brute force."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from tests.micro import ROOT, SHIPPED

CALCULATE = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b,
}
NO_TABLES = Database({})


def query(stage: str, **values) -> list[tuple]:
    return NO_TABLES.sql((ROOT / f"stages/corpus/{stage}.sql").read_text(), **values).fetchall()


def brute_force(largest_operand: int, largest_answer: int) -> set[tuple]:
    cells = set()
    for operator, calculate in CALCULATE.items():
        for a in range(operator == "divide", largest_operand + 1):
            for b in range(operator == "divide", largest_operand + 1):
                if 0 <= (result := calculate(a, b)) <= largest_answer:
                    cells.add((operator, a, b, result))
    return cells


@given(st.integers(1, 25), st.integers(1, 60))
def test_the_grid_is_every_cell_and_no_other(largest_operand: int, largest_answer: int):
    rows = query(
        "cells",
        largest_operand=largest_operand,
        largest_answer=largest_answer,
        held_out_percent=10,
        seed=0,
    )
    assert {row[:4] for row in rows} == brute_force(largest_operand, largest_answer)
    assert len(rows) == len({row[:3] for row in rows})
    assert rows == sorted(rows)


def test_the_studys_grid_has_its_published_size():
    rows = query("cells", **SHIPPED["cells"])
    assert Counter(row[0] for row in rows) == {
        "add": 90_000,
        "subtract": 45_150,
        "multiply": 5_784,
        "divide": 89_401,
    }
    held_out = sum(row[4] == "held-out" for row in rows)
    assert held_out / len(rows) == pytest.approx(0.1, abs=0.005)


def test_the_split_depends_on_the_seed_and_on_nothing_else():
    first = query("cells", largest_operand=20, largest_answer=99, held_out_percent=10, seed=0)
    wider = query("cells", largest_operand=25, largest_answer=99, held_out_percent=10, seed=0)
    other = query("cells", largest_operand=20, largest_answer=99, held_out_percent=10, seed=1)
    assert set(first) <= set(wider)
    assert set(first) != set(other)
    assert {
        row[4]
        for row in query("cells", largest_operand=9, largest_answer=99, held_out_percent=0, seed=0)
    } == {"train"}


def test_facts_relate_each_entity_to_one_object():
    facts = query("facts", countries=40, people=60, things=40, languages=12, kinds=10, seed=0)
    assert Counter(relation for relation, _, _ in facts) == {
        "capital": 40,
        "capital_of": 40,
        "kind": 40,
        "born_in": 60,
        "native_language": 60,
        "died_in": 60,
    }
    assert len({fact[:2] for fact in facts}) == len(facts)
    capitals = {(entity, thing) for relation, entity, thing in facts if relation == "capital"}
    assert capitals == {
        (thing, entity) for relation, entity, thing in facts if relation == "capital_of"
    }


def test_operands_results_and_sizes_are_integers_in_every_table():
    """A product of two SMALLINTs overflows."""
    operands = {"op1", "op2", "result", "number", "frequency1", "frequency2"}
    operands |= {f"counterfactual_{quantity}" for quantity in ("op1", "op2", "result")}
    described = tables(ROOT / "stages")
    kinds = {
        (table.name, name): kind
        for table in described.values()
        for name, (kind, _) in table.columns.items()
    }
    numbers = {
        key: kind for key, kind in kinds.items() if key[0] == "architecture" or key[1] in operands
    }
    assert not [key for key, kind in numbers.items() if "SMALLINT" in kind or "TINYINT" in kind]
    assert len(numbers) > 20


def test_operands_multiply_without_overflow():
    cells = (ROOT / "stages/corpus/cells.sql").read_text()
    values = {"largest_operand": 999, "largest_answer": 999, "held_out_percent": 0, "seed": 0}
    [(largest,)] = NO_TABLES.sql(f"select max(op1 * op2) from ({cells})", **values).fetchall()
    assert largest == 999 * 999
