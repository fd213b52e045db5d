"""Give access to a model under study: its name, its settings, its tables and its stores.

This module loads no model; model/checkpoint.py does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import AfterValidator, Field, model_validator

from stages.lib.core.hdf5_store import LayerStore
from stages.lib.core.settings import Count, Few, Natural, ParamsError, Section, check, read
from stages.lib.core.shards import stores
from stages.lib.core.tables import read_table
from stages.lib.core.templates import placeholders
from stages.lib.core.vocabulary import OPERATORS, Operator
from stages.lib.settings import Passes, Runs


def _asks_about_operands(template: str) -> str:
    needed = "it holds {op1}, {symbol} and {op2}, once each, and no other {...}"
    try:
        names = placeholders(template.replace("\n", " "))  # solved examples may be on other lines
    except ValueError as error:
        raise ValueError(f"{error}; {needed}") from None
    if sorted(names) != ["op1", "op2", "symbol"]:
        raise ValueError(needed)
    return template


def _a_folder(source: str) -> str:
    if source.endswith(".gguf"):
        way_out = "`bag add NAME FILE.gguf` writes both entries"
        raise ValueError(f"a GGUF file is converted to a folder first; {way_out}")
    return source


class Sizes(Section):
    """How many pairs and neurons a model's experiments use; None: the chapter's own setting.

    They are not part of the model's entry, so that no dump depends on them.
    """

    pairs_per_split: Few | None = None
    pairs_per_template: dict[str, Natural] | None = None
    patched_neurons: Count | None = None
    sampled_neurons: Natural | None = None
    random_head_circuits: Natural | None = None
    single_heads: bool | None = None
    single_units: bool | None = None


class SubjectSettings(Section):
    """One model's entry, on which its dump depends.

    If `passes` or `runs` is None, the model uses the section of that name.
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
        sizes = sorted(Sizes.model_fields.keys() & set(entry)) if isinstance(entry, dict) else []
        if sizes:
            raise ValueError(f"{sizes[0]} is not set in a model's entry; set it under `sizes`")
        return entry

    def operands(self, largest: int) -> range:
        """Return the operands of the model's prompts, 0 to its largest operand.

        largest: operand of the grid, which is the default. Raises ParamsError if the model's own
        largest operand is larger.
        """
        own = self.largest_operand
        if own is None:
            return range(largest + 1)
        if own > largest:
            grid = f"the grid ends at cells.largest_operand = {largest}"
            raise ParamsError(f"largest_operand is {own}; {grid}, in stages/corpus/params.yaml")
        return range(own + 1)

    def kept_layers(self, layers: int) -> list[int]:
        """Return the layers whose activations the store keeps.

        layers: of the model. Raises ParamsError for a layer that the model lacks.
        """
        if self.layers == "all":
            return list(range(layers))
        kept = sorted(set(self.layers))
        if kept[-1] >= layers:
            problem = f"layers names layer {kept[-1]}"
            raise ParamsError(f"{problem}; {self.source} has the layers 0..{layers - 1}")
        return kept


def _no_word_of_yaml(name: str) -> str:
    if name in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        raise ValueError("YAML reads this word as a value; choose another name")
    return name


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$"), AfterValidator(_no_word_of_yaml)]


Subjects = Annotated[dict[Name, SubjectSettings], Field(min_length=1)]


MoreSubjects = dict[Name, SubjectSettings]


SECTIONS = ("subjects", "checkpoints", "finetuned", "stored")


class Point(Section):
    """A point of a training run. step: of the run; last: the subject at the end of the run."""

    source: str
    step: Natural
    last: str


def load_subject(name: str) -> SubjectSettings:
    """Return the checked entry of this name in any of the SECTIONS of params.yaml.

    Raises ParamsError, which lists the names, if there is none.
    """
    whole = read()
    sections = {key: whole.get(key) or {} for key in SECTIONS}
    for key, known in sections.items():
        if name in known:
            return check(SubjectSettings, known[name], f"{key}.{name}")
    nonempty = {key: ", ".join(known) for key, known in sections.items() if known}
    listed = "; ".join(f"the {key} {names}" for key, names in nonempty.items())
    raise ParamsError(f"unknown subject {name!r}; params.yaml has {listed}")


def load_sizes(name: str) -> Sizes:
    """Return the checked sizes of this model, all None where params.yaml names none."""
    sizes = read().get("sizes") or {}
    return check(Sizes, sizes.get(name, {}), f"sizes.{name}")


@dataclass(frozen=True)
class Subject:
    """A model under study, of any of SECTIONS. settings: its entry in params.yaml."""

    name: str
    settings: SubjectSettings

    @classmethod
    def named(cls, name: str) -> "Subject":
        """Return the subject of this name. Raises ParamsError as load_subject does."""
        return cls(name, load_subject(name))

    def path(self, file: str) -> Path:
        """Return the path of one of the subject's files. file: <chapter>/<name>."""
        return Path("data") / self.name / file

    def table(self, file: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Return one of the subject's tables. columns: to read, None for all."""
        return read_table(self.path(file), columns=columns)

    def activation_stores(self) -> list[LayerStore]:
        """Return the activations of all neurons over the operand grid: a store per operator, in
        alphabetical order.

        Raises ParamsError if a store was made with another largest operand.
        """
        activations = stores(self.path("store/activations"))
        largest = self.settings.largest_operand
        if largest is None:
            return activations
        for store in activations:
            stored = store.axes["op1"] - 1
            if stored != largest:
                raise ParamsError(
                    f"{store.path} holds the operands 0..{stored}, and {self.name}.largest_operand "
                    f"is {largest}; correct the setting, or make the store again: "
                    f"dvc repro stages/store/dvc.yaml:dump@{self.name}"
                )
        return activations

    def value_logits(self) -> LayerStore:
        """Return the value logits of all neurons."""
        return LayerStore(self.path("store/value_logits.h5"))
