"""Settings of the chapter store, stages/store/params.yaml: types and allowed values."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from stages.lib.core import machine
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
    def memory_of_block(self) -> int:
        """Bytes of a block's activations: half of the memory, on every machine."""
        return (self.memory_mib << 20) // 2

    @property
    def memory_of_pass(self) -> int:
        """Bytes of one forward pass: the other half, and as many times that as a GPU's passes are."""
        return self.memory_of_block * machine.passes(machine.PROMPTS)

    def prompts_per_block(self, values: int) -> int:
        """Return the most prompts of a block. values: activations that each prompt leaves."""
        fitting = self.memory_of_block // (values * np.dtype(self.store_dtype).itemsize)
        return max(1, min(self.cells_per_block, fitting))
