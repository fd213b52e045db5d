"""Settings of the chapter store, stages/store/params.yaml: types and allowed values."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from stages.lib.core import environment
from stages.lib.core.settings import Count, Natural, Section


class Figures(Section):
    neurons_per_operator: Annotated[int, Field(ge=1, le=48)]


class Dump(Section):
    cells_per_block: Count
    memory_mib: Annotated[int, Field(ge=128, le=10**9)]
    neurons_per_chunk: Count
    store_dtype: Literal["float16", "float32"]
    largest_file_mib: Natural

    @property
    def memory_of_pass(self) -> int:
        """Bytes of one forward pass: half of the memory; more on a GPU, with larger passes."""
        return self._half * environment.passes()

    def prompts_per_block(self, values: int, dtype: str) -> int:
        """Return the most prompts of a block.

        values: number of activations of each prompt; dtype: data type of the computation. A block
        holds at least a forward pass, so it is larger for a GPU. In float64 it is not: blocks
        determine the layout of the files, whose bytes must be the same on every machine.
        """
        memory = self._half if dtype == "float64" else self.memory_of_pass
        fitting = memory // (values * np.dtype(self.store_dtype).itemsize)
        return max(1, min(self.cells_per_block, fitting))

    @property
    def _half(self) -> int:
        return (self.memory_mib << 20) // 2
