"""Settings of the chapter subjects, stages/subjects/params.yaml: types and allowed values."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from stages.lib.core.settings import (
    Count,
    Few,
    Natural,
    ParamsError,
    Positive,
    Section,
    Seed,
    Share,
    Threads,
    check,
    read,
)
from stages.lib.core.vocabulary import Task
from stages.lib.settings import GgufModel, HubModel


class Optimisation(Section):
    """How a model is trained, from scratch or fine-tuned."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)]
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    warmup_steps: Count
    weight_decay: Share
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    gradient_clip: Positive
    precision: Literal["float32", "bfloat16"]
    evaluate_every: Count
    threads: Threads
    seed: Seed


Made = TypeVar("Made", bound=Section)


class ModelShape(Section):
    layers: Annotated[int, Field(ge=1, le=200)]
    width: Annotated[int, Field(ge=2, le=20_000)]
    neurons: Annotated[int, Field(ge=1, le=100_000)]
    heads: Annotated[int, Field(ge=1, le=200)]
    positions: Annotated[int, Field(ge=8, le=10_000)]
    alike: Natural

    @model_validator(mode="after")
    def heads_divide_width(self) -> "ModelShape":
        if self.width % (2 * self.heads):
            multiple = f"multiple of 2 x heads = {2 * self.heads}"
            raise ValueError(f"width is {self.width}, which must be a {multiple}")
        return self

    @model_validator(mode="after")
    def alike_heads_are_heads(self) -> "ModelShape":
        if self.alike > self.heads:
            raise ValueError(f"alike is {self.alike}, which must be at most heads = {self.heads}")
        return self


class Batch(Section):
    grid: Few
    arithmetic: Natural
    number_words: Natural
    three_operands: Natural
    retrieval: Natural
    factual: Natural


class Lesson(Section):
    """Steps before the mixture of all tasks, with examples of some tasks alone."""

    steps: Count
    batch: Annotated[dict[Task | Literal["counting"], Few], Field(min_length=1)]


class CellWeights(Section):
    add: Positive
    subtract: Positive
    multiply: Positive
    divide: Positive
    divide_to_zero: Positive


class Train(Optimisation):
    model: ModelShape
    numbers: Literal["tokens", "digits"]
    checkpoints: Annotated[list[Natural], Field(min_length=1)]
    batch: Batch
    curriculum: list[Lesson]
    cell_weights: CellWeights
    evaluation_cells: Count
    evaluation_prompts: Natural

    @model_validator(mode="after")
    def checkpoints_end_with_the_last_step(self) -> "Train":
        if sorted(set(self.checkpoints)) != self.checkpoints or self.checkpoints[-1] != self.steps:
            needed = f"checkpoints must rise and end with steps = {self.steps}"
            raise ValueError(f"{needed}, they are {self.checkpoints}")
        return self

    @model_validator(mode="after")
    def curriculum_can_be_taught(self) -> "Train":
        lessons = sum(lesson.steps for lesson in self.curriculum)
        if lessons >= self.steps:
            left = f"leaves none of {self.steps} to the mixture of all tasks"
            raise ValueError(f"curriculum has {lessons} steps, which {left}; shorten it")
        counting = any("counting" in lesson.batch for lesson in self.curriculum)
        if self.numbers == "digits" and counting:
            raise ValueError(
                "curriculum has counting, which asks for numbers of one token; leave it out if "
                "`numbers` is digits"
            )
        return self


class Finetuning(Optimisation):
    source: str
    before: str
    bos: bool | None = None
    task: Task
    batch: Few
    evaluation_prompts: Few


def load_training(name: str) -> Train:
    """Return the checked entry of this name in the section train; raises as load_gguf does."""
    return _entry(Train, "train", name)


def load_finetuning(name: str) -> Finetuning:
    """Return the checked entry of this name in the section finetune; raises as load_gguf does."""
    return _entry(Finetuning, "finetune", name)


def load_hub(name: str) -> HubModel:
    """Return the checked entry of this name in the section hub; raises as load_gguf does."""
    return _entry(HubModel, "hub", name)


def load_gguf(name: str) -> GgufModel:
    """Return the checked entry of this name in the section gguf.

    Raises ParamsError, which lists the entries, if there is none of this name.
    """
    return _entry(GgufModel, "gguf", name)


def _entry(kind: type[Made], section: str, name: str) -> Made:
    known = read().get(section) or {}
    if name not in known:
        names = ", ".join(known) or "nothing there"
        raise ParamsError(
            f"nothing under {section} is called {name!r}; stages/subjects/params.yaml has {names}"
        )
    return check(kind, known[name], f"{section}.{name}")


class Grades(Section):
    exact: Few
    partial: Few
    soft: Few
    mixture: Few
    noise: Few


class Planted(Section):
    copies: Annotated[int, Field(ge=1, le=100)]
    neurons: Grades
    noises: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]
    noise_functions: Annotated[int, Field(ge=2, le=100)]
    smallest_share: Share
    largest_share: Share
    vote: Positive
    others: Annotated[float, Field(gt=0, le=0.001)]
    seed: Seed

    @model_validator(mode="after")
    def shares_leave_heuristics(self) -> "Planted":
        if self.smallest_share >= self.largest_share:
            needed = f"must be below largest_share = {self.largest_share}"
            raise ValueError(f"smallest_share is {self.smallest_share}, which {needed}")
        return self
