"""Define the grammar of predicates: what can be discovered, and how many bits describe it.

A *view* turns a quantity into a small code, such as `op1 // 10` or `result % 7`. Views are of op1,
op2, the result, or of both operands (a carry, a borrow, a comparison). An *atom* says that the code
of a view is one value, or in a range. A *predicate* is an atom, or a conjunction of two.

The description of an atom names the view, whether a value or a range follows, and which: all
choices are equally long. A predicate needs one more bit, for the number of its atoms. A conjunction
saves one, since its atoms have no order.
"""

from dataclasses import dataclass
from math import log2

import numpy as np

STEPS = (1, 10, 100)  # ranges start and end at multiples of these
MODULI = (*range(2, 21), 25, 50, 100)
BOTH = "both"
# predicates of both operands, each with its negation
RELATIONS = {
    "op1 % 10 + op2 % 10 >= 10": "op1 % 10 + op2 % 10 < 10",  # a carry
    "op1 % 100 + op2 % 100 >= 100": "op1 % 100 + op2 % 100 < 100",
    "op1 % 10 < op2 % 10": "op1 % 10 >= op2 % 10",  # a borrow
    "op1 % 100 < op2 % 100": "op1 % 100 >= op2 % 100",
    "op1 < op2": "op1 >= op2",
    "op1 = op2": "op1 <> op2",
}


@dataclass(frozen=True, eq=False)
class QuantityView:
    """A function of a quantity.

    expression: in SQL; step: if the codes are those of a range of the quantity itself, how many
    values have a code, else 0; codes: (values,) the code of each value of the quantity.
    """

    quantity: str
    expression: str
    step: int
    codes: np.ndarray

    @property
    def size(self) -> int:
        """Return the number of codes, which start at 0."""
        return int(self.codes.max()) + 1

    def text(self, low: int, high: int) -> str:
        """Return the SQL condition that the code is in low..high, both included."""
        if self.quantity == BOTH:
            return self.expression if low else RELATIONS[self.expression]
        left, last = self.expression, self.size - 1
        if self.step:
            left, largest = self.quantity, len(self.codes) - 1
            low, high = low * self.step, min((high + 1) * self.step - 1, largest)
            last = largest
        if low == high:
            return f"{left} = {low}"
        if low == 0:
            return f"{left} <= {high}"
        if high == last:
            return f"{left} >= {low}"
        return f"{left} between {low} and {high}"


def views(largest: dict[str, int]) -> list[QuantityView]:
    """Return all views. largest: the largest value of op1, op2 and result."""
    made = []
    for quantity, end in largest.items():
        values = np.arange(end + 1)
        for step in STEPS:
            if end >= step:
                made.append(QuantityView(quantity, f"{quantity} // {step}", step, values // step))
        for modulus in MODULI:
            if end >= modulus:
                made.append(QuantityView(quantity, f"{quantity} % {modulus}", 0, values % modulus))
        if end >= 100:
            made.append(QuantityView(quantity, f"{quantity} // 10 % 10", 0, values // 10 % 10))
    patterns = np.arange(1 << len(RELATIONS))
    for bit, relation in enumerate(RELATIONS):
        made.append(QuantityView(BOTH, relation, 0, patterns >> bit & 1))
    return made


def relations(op1: np.ndarray, op2: np.ndarray) -> np.ndarray:
    """Return which relations hold in each cell: (cells,), relation k is bit k."""
    holds = [
        op1 % 10 + op2 % 10 >= 10,
        op1 % 100 + op2 % 100 >= 100,
        op1 % 10 < op2 % 10,
        op1 % 100 < op2 % 100,
        op1 < op2,
        op1 == op2,
    ]
    return np.array([held << bit for bit, held in enumerate(np.array(holds, np.int64))]).sum(0)


def bits(made: list[QuantityView]) -> np.ndarray:
    """Return the bits of an atom of each view: (views, 2), of a single value and of a range."""
    which = log2(len(made)) + 1
    values = [log2(view.size) for view in made]
    ranges = [log2(max(1, view.size * (view.size - 1) // 2)) for view in made]
    return which + np.array([values, ranges]).T
