"""Settings of our own subject and of training, whatever it starts from."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.lib.params.sections import Count, NonNegative, Positive, Section, Seed, Share, Threads


class Optimisation(Section):
    """How a model is trained, from scratch or further."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    learning_rate: Positive
    warmup_steps: Count
    weight_decay: NonNegative
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)]
    gradient_clip: Positive
    precision: Literal["float32", "bfloat16"]
    evaluate_every: Count
    threads: Threads
    seed: Seed


class ModelShape(Section):
    layers: Count
    width: Count
    neurons: Count
    heads: Count
    positions: Annotated[int, Field(ge=8)]

    @model_validator(mode="after")
    def heads_divide_width(self) -> "ModelShape":
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 x heads, {self.width} is not one of {2 * self.heads}")
        return self


class Batch(Section):
    grid: Count
    arithmetic: Count
    number_words: Count
    three_operands: Count
    retrieval: Count
    factual: Count


class CellWeights(Section):
    add: Positive
    subtract: Positive
    multiply: Positive
    divide: Positive
    divide_to_zero: Positive


class Train(Optimisation):
    model: ModelShape
    checkpoints: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    batch: Batch
    cell_weights: CellWeights
    evaluation_cells: Count

    @model_validator(mode="after")
    def checkpoints_end_with_the_last_step(self) -> "Train":
        if sorted(set(self.checkpoints)) != self.checkpoints or self.checkpoints[-1] != self.steps:
            raise ValueError(f"checkpoints must rise and end with steps = {self.steps}, they are {self.checkpoints}")
        return self
