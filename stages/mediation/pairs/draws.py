"""Draw two questions that differ in a known way: in their answers, or in everything but the answer.

Questions with equal answers form one block. A draw can therefore skip a whole block, and never has
to be repeated.
"""

import numpy as np


class Blocks:
    """Blocks of a sequence. starts, ends, sizes: (elements,) those of the block of each element."""

    def __init__(self, opens_block: np.ndarray):
        """opens_block: (elements,) whether a block begins with this element."""
        block = np.cumsum(opens_block) - 1
        first = np.flatnonzero(opens_block)
        self.starts = first[block]
        self.ends = np.append(first[1:], len(opens_block))[block]
        self.sizes = self.ends - self.starts


class Counterparts:
    """Draws of two questions, by number."""

    def __init__(self, answers: np.ndarray, operands: np.ndarray):
        """Sort the questions into blocks.

        answers, operands: (questions,) whole numbers from 0. Questions with equal answers and equal
        `operands` are the same question with its operands in another order.
        """
        self.order = np.lexsort((operands, answers))  # stable: equal questions stay in order
        other_answer = np.diff(answers[self.order], prepend=-1) != 0
        other_operands = np.diff(operands[self.order], prepend=-1) != 0
        self.all = Blocks(np.arange(len(answers)) == 0)
        self.same_answer = Blocks(other_answer)
        self.same_question = Blocks(other_answer | other_operands)
        self.with_varied = np.flatnonzero(self.all.sizes > self.same_answer.sizes)
        self.with_fixed = np.flatnonzero(self.same_answer.sizes > self.same_question.sizes)

    def varied(self, rng: np.random.Generator) -> tuple[int, int] | None:
        """Draw a question, and uniformly one with another answer.

        Returns None if all answers are equal.
        """
        return self._draw(rng, self.with_varied, self.all, self.same_answer)

    def fixed(self, rng: np.random.Generator) -> tuple[int, int] | None:
        """Draw a question, and uniformly another question with the same answer.

        Returns None if no answer has two questions.
        """
        return self._draw(rng, self.with_fixed, self.same_answer, self.same_question)

    def _draw(
        self, rng: np.random.Generator, candidates: np.ndarray, within: Blocks, without: Blocks
    ) -> tuple[int, int] | None:
        """Draw one of the candidates, and an element of its block that is not in its inner block.

        within: the blocks; without: the inner blocks, each a part of a block
        """
        if not len(candidates):
            return None
        first = candidates[rng.integers(len(candidates))]
        start, size = within.starts[first], within.sizes[first]
        step = rng.integers(size - without.sizes[first])
        second = start + (without.ends[first] - start + step) % size
        return int(self.order[first]), int(self.order[second])
