"""One handle for a model under study: its name, its settings, its tables and its stores. It loads no model (model/checkpoint does)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stages.lib.params.subjects import SubjectSettings, load_subject
from stages.lib.store import LayerStore


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
        """Where a file of its own lies, or is to be written."""
        return Path("data") / self.name / file

    def table(self, file: str, columns: list[str] | None = None) -> pl.DataFrame:
        """One of its tables, or some columns of it."""
        return pl.read_parquet(self.path(file), columns=columns)

    def squares(self) -> Iterator[LayerStore]:
        """Its neurons' activations over the square of prompts: the store of each operator, by the alphabet, opened in turn."""
        return map(LayerStore, sorted(self.path("activations").glob("*.h5")))

    def votes(self) -> LayerStore:
        """Its neurons' value logits."""
        return LayerStore(self.path("value_logits.h5"))
