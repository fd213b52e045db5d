"""One handle for a model under study: its name, its settings, its tables and its stores. It loads no model (model/checkpoint does)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import AfterValidator, Field, model_validator

from stages.lib.core.layered import LayerStore
from stages.lib.core.settings import Count, Few, Natural, ParamsError, Section, check, read
from stages.lib.core.shards import stores
from stages.lib.core.tables import read_table
from stages.lib.core.templates import placeholders
from stages.lib.core.words import OPERATORS, Operator
from stages.lib.settings import Passes, Runs


def _asks_about_operands(template: str) -> str:
    needed = "it holds {op1}, {symbol} and {op2}, once each, and no other {...}"
    try:
        found = placeholders(template.replace("\n", " "))  # solved examples stand on lines of their own
    except ValueError as error:
        raise ValueError(f"{error}; {needed}") from None
    if sorted(found) != ["op1", "op2", "symbol"]:
        raise ValueError(needed)
    return template


def _a_folder(source: str) -> str:
    if source.endswith(".gguf"):
        way_out = "`bag add NAME FILE.gguf` writes both entries"
        raise ValueError(f"a GGUF file is converted to a folder first; {way_out}")
    return source


class Sizes(Section):
    """How many pairs and neurons a model's experiments take; None: as the chapter's settings say.

    They stand apart from the model's entry, so that no dump depends on them.
    """

    pairs_per_split: Few | None = None
    pairs_per_template: dict[str, Natural] | None = None
    patched_neurons: Count | None = None
    sampled_neurons: Natural | None = None
    single_heads: bool | None = None
    single_units: bool | None = None


class SubjectSettings(Section):
    """One model's entry, on which its dump depends.

    Where `passes` or `runs` is None, the section of that name holds.
    """

    source: Annotated[str, AfterValidator(_a_folder)]
    revision: str
    dtype: Literal["float32", "float16", "bfloat16", "float64"]
    template: Annotated[str, AfterValidator(_asks_about_operands)]
    bos: bool | None = None
    layers: Literal["all"] | Annotated[list[Natural], Field(min_length=1)] = "all"
    operators: Annotated[list[Operator], Field(min_length=1, default=[*OPERATORS])]
    answer_token: Annotated[int, Field(ge=0, le=3)] | None = None
    largest_operand: Annotated[int, Field(ge=9, le=999)] | None = None
    chat: bool = False
    passes: Passes | None = None
    runs: Runs | None = None

    @model_validator(mode="before")
    @classmethod
    def _sizes_stand_apart(cls, entry: Any) -> Any:
        if isinstance(entry, dict) and (sizes := sorted(Sizes.model_fields.keys() & entry.keys())):
            raise ValueError(f"{sizes[0]} is not set in a model's entry; set it under `sizes`")
        return entry

    def operands(self, largest: int) -> range:
        """The operands that it is asked; largest: that of the grid. Raises ParamsError on a larger one of its own."""
        if self.largest_operand is not None and self.largest_operand > largest:
            file = "stages/corpus/params.yaml"
            raise ParamsError(f"largest_operand is {self.largest_operand}; the grid ends at cells.largest_operand = {largest}, in {file}")
        return range((largest if self.largest_operand is None else self.largest_operand) + 1)

    def kept_layers(self, layers: int) -> list[int]:
        """The layers whose activations are kept, of a model with `layers` layers. Raises ParamsError on one it lacks."""
        kept = list(range(layers)) if self.layers == "all" else sorted(set(self.layers))
        if kept[-1] >= layers:
            raise ParamsError(f"layers names layer {kept[-1]}; {self.source} has the layers 0..{layers - 1}")
        return kept


def _no_word_of_yaml(name: str) -> str:
    if name in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        raise ValueError("YAML knows this word as a value; call it something else")
    return name


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$"), AfterValidator(_no_word_of_yaml)]


Subjects = Annotated[dict[Name, SubjectSettings], Field(min_length=1)]


MoreSubjects = dict[Name, SubjectSettings]


SECTIONS = ("subjects", "checkpoints", "finetuned", "stored")


class Point(Section):
    """A point of a training run. last: the subject that the run ends with."""

    source: str
    step: Natural
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


def load_sizes(name: str) -> Sizes:
    """Return the checked sizes of this model, all None where params.yaml names none."""
    sizes = read().get("sizes") or {}
    return check(Sizes, sizes.get(name, {}), f"sizes.{name}")


@dataclass(frozen=True)
class Subject:
    """A model under study, of any of SECTIONS. settings: as params.yaml has them."""

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

    def squares(self) -> list[LayerStore]:
        """Its neurons' activations over the square of prompts: the store of each operator, by the alphabet.

        Raises ParamsError on one that was made when the subject's own largest operand was another.
        """
        found, largest = stores(self.path("store/activations")), self.settings.largest_operand
        for store in found:
            if largest is not None and (made := store.axes["op1"] - 1) != largest:
                raise ParamsError(
                    f"{store.path} holds the operands 0..{made}, and {self.name}.largest_operand is {largest}; correct that, or make the "
                    f"store anew: dvc repro stages/store/dvc.yaml:dump@{self.name}"
                )
        return found

    def votes(self) -> LayerStore:
        """Its neurons' value logits."""
        return LayerStore(self.path("store/value_logits.h5"))
