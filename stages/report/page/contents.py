"""Read what the page shows, from contents.yaml and each chapter's page.yaml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from stages.lib.core.vocabulary import CHAPTERS

FOLDER = Path(__file__).parent


class Declared(BaseModel):
    """A part of the page as YAML declares it; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rows(Declared):
    """Rows of a table, as the parts of a query; the top of contents.yaml explains the keys."""

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
        """The tables that the query reads."""
        return [self.table, *self.joined] if self.table else []


class Picture(Declared):
    """A figure: its path below reports/ without ending, and a description of it."""

    path: str
    alt: str


class Item(Rows):
    """A table, figures, or both, with a title and a text."""

    id: str
    text: str
    figures: list[Picture] = []
    shared: bool = False
    study: bool = False


class PagePart(Declared):
    """A section of the page."""

    id: str
    title: str
    text: str
    items: list[Item]


class Fact(Rows):
    """Rows about the selected neuron, or about its heuristics."""

    by: Literal["neuron", "heuristic"]


class Browser(Declared):
    """The neuron browser."""

    title: str
    text: str
    facts: list[Fact]


class Contents(Declared):
    """The whole page."""

    title: str
    text: str
    sections: list[PagePart]
    browser: Browser

    def only(self, study: bool) -> "Contents":
        """Return the items that compare models, or all other items, without empty sections."""
        sections = []
        for part in self.sections:
            items = [item for item in part.items if item.study == study]
            if items:
                sections.append(part.model_copy(update={"items": items}))
        browser = self.browser
        if study:
            browser = browser.model_copy(update={"facts": []})
        return self.model_copy(update={"sections": sections, "browser": browser})

    def items(self) -> Iterator[Item]:
        """Yield the items of all sections."""
        for part in self.sections:
            yield from part.items

    def tables(self, shared: bool) -> list[str]:
        """Return the tables of the items that all models share, or of those of one model."""
        names: set[str] = set()
        for item in self._items(shared):
            names.update(item.tables)
        if not shared:
            for fact in self.browser.facts:
                names.update(fact.tables)
        return sorted(names)

    def pictures(self, shared: bool) -> list[str]:
        """Return the paths of figures of such items, with {subject} and {operator} in them."""
        paths: list[str] = []
        for item in self._items(shared):
            paths += [picture.path for picture in item.figures]
        return paths

    def _items(self, shared: bool) -> list[Item]:
        return [item for item in self.items() if item.shared == shared]


def contents() -> Contents:
    """Return the whole page: contents.yaml, with the sections of every chapter's page.yaml."""
    whole = yaml.safe_load((FOLDER / "contents.yaml").read_text(encoding="utf-8"))
    sections: list[dict] = []
    for chapter in CHAPTERS:
        file = FOLDER.parents[1] / chapter / "page.yaml"
        if file.exists():
            sections += yaml.safe_load(file.read_text(encoding="utf-8"))
    return Contents.model_validate(whole | {"sections": sections})
