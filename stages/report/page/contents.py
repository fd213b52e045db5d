"""What the page shows, as contents.yaml and each chapter's page.yaml declare it, and which tables and pictures that takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from stages.lib.core.words import CHAPTERS

FOLDER = Path(__file__).parent


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rows(Declared):
    """Rows of a table, as the parts of a query. The keys are explained at the top of contents.yaml."""

    title: str
    table: str | None = None
    joined: list[str] = Field([], alias="with")
    source: str = Field("", alias="from")
    columns: list[str] = []
    where: str = "true"
    sort: str = ""
    shares: list[str] = []
    operators: list[str] = ["operator"]
    empty: str = ""

    @property
    def tables(self) -> list[str]:
        return [self.table, *self.joined] if self.table else []


class Picture(Declared):
    path: str
    alt: str


class Item(Rows):
    id: str
    text: str
    figures: list[Picture] = []
    shared: bool = False
    study: bool = False


class Part(Declared):
    id: str
    title: str
    text: str
    items: list[Item]


class Fact(Rows):
    by: Literal["neuron", "heuristic"]


class Browser(Declared):
    title: str
    text: str
    facts: list[Fact]


class Contents(Declared):
    title: str
    text: str
    sections: list[Part]
    browser: Browser

    def only(self, study: bool) -> "Contents":
        """What compares several subjects, or what is about one subject or about all alike; sections of which nothing is left go."""
        parts = [part.model_copy(update={"items": [item for item in part.items if item.study == study]}) for part in self.sections]
        browser = self.browser.model_copy(update={"facts": []}) if study else self.browser
        return self.model_copy(update={"sections": [part for part in parts if part.items], "browser": browser})

    def items(self) -> Iterator[Item]:
        for part in self.sections:
            yield from part.items

    def tables(self, shared: bool) -> list[str]:
        """The tables that items of all subjects together need, or those of one subject."""
        rows: list[Rows] = [item for item in self.items() if item.shared == shared]
        return sorted({table for part in (rows if shared else [*rows, *self.browser.facts]) for table in part.tables})

    def pictures(self, shared: bool) -> list[str]:
        """Their paths, {subject} and {operator} still open."""
        return [picture.path for item in self.items() if item.shared == shared for picture in item.figures]


def contents() -> Contents:
    """What contents.yaml says of the whole page, with every chapter's page.yaml as its sections."""
    whole = yaml.safe_load((FOLDER / "contents.yaml").read_text(encoding="utf-8"))
    files = (FOLDER.parents[1] / chapter / "page.yaml" for chapter in CHAPTERS)
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    sections = [section for text in texts for section in yaml.safe_load(text)]
    return Contents.model_validate(whole | {"sections": sections})
