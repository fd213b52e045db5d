"""One handle for a model under study: its name, its settings, its tables and its stores. It loads no model (model/checkpoint does)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal

import polars as pl
from pydantic import AfterValidator, Field

from stages.lib.core.settings import ParamsError, Section, check, read
from stages.lib.core.tables import read_table
from stages.lib.core.words import Operator
from stages.lib.store import LayerStore


def _asks_about_operands(template: str) -> str:
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"{error}; it holds {{op1}}, {{symbol}} and {{op2}}, once each") from None
    if sorted(fields) != [(name, "", None) for name in ("op1", "op2", "symbol")] or any(ord(letter) < 32 for letter in template):
        raise ValueError("it holds {op1}, {symbol} and {op2}, once each, no other {...} and no control characters")
    return template


class SubjectSettings(Section):
    source: str
    revision: str
    dtype: Literal["float32", "float16", "bfloat16", "float64"]
    template: Annotated[str, AfterValidator(_asks_about_operands)]
    bos: bool
    layers: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    operators: Annotated[list[Operator], Field(min_length=1)]

    def kept_layers(self, layers: int) -> list[int]:
        """The layers whose activations are kept, of a model with `layers` layers. Raises ParamsError on one it lacks."""
        kept = list(range(layers)) if self.layers == "all" else sorted(set(self.layers))
        if kept[-1] >= layers:
            raise ParamsError(f"layers names layer {kept[-1]}; {self.source} has the layers 0..{layers - 1}")
        return kept


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


@dataclass(frozen=True)
class Subject:
    """A subject, a checkpoint or a fine-tuned subject. settings: as params.yaml has them."""

    name: str
    settings: SubjectSettings

    @classmethod
    def named(cls, name: str) -> "Subject":
        """The one of this name. Raises ParamsError, naming those there are."""
        return cls(name, load_subject(name))

    def path(self, file: str) -> Path:
        """Where a file of its own lies, or is to be written. file: <chapter>/<name>."""
        return Path("data") / self.name / file

    def table(self, file: str, columns: list[str] | None = None) -> pl.DataFrame:
        """One of its tables, or some columns of it."""
        return read_table(self.path(file), columns=columns)

    def squares(self) -> Iterator[LayerStore]:
        """Its neurons' activations over the square of prompts: the store of each operator, by the alphabet, opened in turn."""
        return map(LayerStore, sorted(self.path("store/activations").glob("*.h5")))

    def votes(self) -> LayerStore:
        """Its neurons' value logits."""
        return LayerStore(self.path("store/value_logits.h5"))
