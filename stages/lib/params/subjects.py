"""Settings of the subjects and of what is written down of them."""

from typing import Annotated, Literal

from pydantic import Field

from stages.lib.params.sections import Count, ParamsError, Section, check, read
from stages.lib.words import Operator


class SubjectSettings(Section):
    source: str
    revision: str
    dtype: Literal["float32", "float16", "bfloat16", "float64"]
    template: str
    bos: bool
    layers: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    operators: Annotated[list[Operator], Field(min_length=1)]

    def kept_layers(self, layers: int) -> list[int]:
        """The layers whose activations are kept, of a model with `layers` layers. Raises ParamsError on one it lacks."""
        kept = list(range(layers)) if self.layers == "all" else sorted(set(self.layers))
        if kept[-1] >= layers:
            raise ParamsError(f"layers names layer {kept[-1]}; {self.source} has the layers 0..{layers - 1}")
        return kept


class Passes(Section):
    prompts_per_pass: Count


class Dump(Section):
    cells_per_block: Count
    neurons_per_chunk: Count
    store_dtype: Literal["float16", "float32"]


class Runs(Section):
    rows_per_pass: Count
    memory_mib: Annotated[int, Field(ge=128)]


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Subjects = Annotated[dict[Name, SubjectSettings], Field(min_length=1)]
MoreSubjects = dict[Name, SubjectSettings]
SECTIONS = ("subjects", "checkpoints", "finetuned")


class Point(Section):
    """A point of a training run. last: the subject that the run ends with."""

    source: str
    step: Annotated[int, Field(ge=0)]
    last: str


def load_subject(name: str) -> SubjectSettings:
    """The checked subject of this name, wherever params.yaml has it. Raises ParamsError naming those there are."""
    whole = read()
    sections = {key: whole.get(key) or {} for key in SECTIONS}
    for key, known in sections.items():
        if name in known:
            return check(SubjectSettings, known[name], f"{key}.{name}")
    listed = "; ".join(f"the {key} {', '.join(known)}" for key, known in sections.items() if known)
    raise ParamsError(f"unknown subject {name!r}; params.yaml has {listed}")
