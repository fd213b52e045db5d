"""Draws two of many questions that differ in a known way: in their answers, or in all but the answer.

Questions of equal answer stand in one block, so that a draw steps over a block instead of trying again.
"""

import numpy as np


class Blocks:
    """Stretches of a sequence: start, end and size of the one that each place is in; first: where they start."""

    def __init__(self, first: np.ndarray):
        block = np.cumsum(first) - 1
        starts = np.flatnonzero(first)
        self.starts, self.ends = starts[block], np.append(starts[1:], len(first))[block]
        self.sizes = self.ends - self.starts


class Counterparts:
    """Questions by number. answers, alike: (questions,) whole numbers from 0; questions of equal `alike` ask the same, turned round."""

    def __init__(self, answers: np.ndarray, alike: np.ndarray):
        self.order = np.lexsort((alike, answers))  # stable: equal ones stay in order
        another_answer, other_operands = (np.diff(values[self.order], prepend=-1) != 0 for values in (answers, alike))
        self.all = Blocks(np.arange(len(answers)) == 0)
        self.equal = Blocks(another_answer)
        self.alike = Blocks(another_answer | other_operands)
        self.with_varied, self.with_fixed = (
            np.flatnonzero(many.sizes > few.sizes) for many, few in ((self.all, self.equal), (self.equal, self.alike))
        )

    def varied(self, rng: np.random.Generator) -> tuple[int, int] | None:
        """A question, and one with another answer, each as likely as any. None where all answers are the same."""
        return self._draw(rng, self.with_varied, self.all, self.equal)

    def fixed(self, rng: np.random.Generator) -> tuple[int, int] | None:
        """A question, and another with the same answer that is not alike. None where no answer has two."""
        return self._draw(rng, self.with_fixed, self.equal, self.alike)

    def _draw(self, rng: np.random.Generator, places: np.ndarray, within: Blocks, without: Blocks) -> tuple[int, int] | None:
        """A question at one of `places`, and one of its block `within` that is not in its block `without`, a part of that."""
        if not len(places):
            return None
        place = places[rng.integers(len(places))]
        start, size = within.starts[place], within.sizes[place]
        other = start + (without.ends[place] - start + rng.integers(size - without.sizes[place])) % size
        return int(self.order[place]), int(self.order[other])
