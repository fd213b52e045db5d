"""Make the pages of the documentation: Markdown texts by their path in the site.

A link to a file that is not a page, such as a query or settings, leads to a generated page with the
file's text. A link to a folder leads to a list of its files.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from stages.lib import dictionary
from stages.lib.console.tables import first_sentence
from stages.lib.core.vocabulary import CHAPTERS

ROOT = Path(__file__).parents[2]
GALLERY = "docs/gallery"
ROOMS = (*CHAPTERS, "explorer")
TABLES = "docs/tables"  # a folder of the site, not of the repository
PICTURES = {".png", ".svg", ".webp"}
LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".cff": "yaml"}
GUIDES = {
    "Quickstart": "examples/quickstart.ipynb.md",
    "Console": "docs/console.md",
    "Your own model": "docs/models.md",
    "A first look at your model": "examples/own_model.ipynb.md",
    "Model families": "docs/families.md",
    "A real model: Qwen": "examples/qwen/README.md",
    "Cores, GPUs, machines": "docs/cluster.md",
    "Share and verify": "docs/sharing.md",
    "Bridges": "docs/bridges.md",
}
FIRST_IN_SEARCHES = "---\nsearch:\n  boost: 4\n---\n\n"
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"([\\*_<\[\]|])")


@dataclass(frozen=True)
class GalleryQuery:
    """A query of the gallery. title: what it shows; note: what to look at; drawn: its picture."""

    path: str
    title: str
    note: str
    query: str

    @property
    def drawn(self) -> str:
        return str(Path(self.path).with_suffix(".webp"))


def written() -> list[str]:
    """Return the repository's Markdown files that are pages of the site."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
    paths += [ROOT / "stages" / room / "README.md" for room in ROOMS]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def pages() -> dict[str, str]:
    """Return every page's Markdown by its path in the site."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in written()}
    texts |= tables() | {f"{GALLERY}/index.md": gallery_page()}
    sources: dict[str, str] = {}
    for page, text in texts.items():
        for path in linked(page, text):
            if is_source(path):
                sources |= source_pages(path)
        texts[page] = outside_code(text, partial(readable, page))
    texts["docs/glossary.md"] = FIRST_IN_SEARCHES + texts["docs/glossary.md"]
    return texts | sources


def is_source(path: str) -> bool:
    """Return whether a linked path is a file or folder that gets a generated page."""
    file = ROOT / path
    return file.exists() and file.suffix not in {*PICTURES, ".md"}


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text with a change of everything but blocks of code."""
    parts = FENCE.split(text)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def target(page: str, link: str) -> str:
    """Return the path that a page's link leads to, from the root."""
    return os.path.normpath(os.path.join(os.path.dirname(page), link))


def linked(page: str, text: str) -> set[str]:
    """Return what a page links to: paths from the root, pages and pictures included."""
    prose = "".join(FENCE.split(text)[::2])
    return {target(page, match[1]) for match in LINK.finditer(prose)}


def readable(page: str, text: str) -> str:
    """Return a page's prose as the generator reads it.

    Links to source files lead to their pages. Items of lists are indented by 4, not 2 or 3, blanks,
    which Python-Markdown takes for paragraphs of their own.
    """

    def changed(match: re.Match[str]) -> str:
        if is_source(target(page, match[1])):
            return f"]({match[1].rstrip('/')}.md{match[2] or ''})"
        return match[0]

    text = LINK.sub(changed, text)
    text = re.sub(r"^ {2,5}(?=\S)", lambda match: " " * 4 * (len(match[0]) // 2), text, flags=re.M)
    return spaced(text)


def spaced(text: str) -> str:
    """Return a text with an empty line before items of lists that would join the paragraph before.

    These are items of inner lists, and items after one of several paragraphs.
    """
    lines: list[str] = []
    after_paragraph = False
    for line in text.split("\n"):
        is_item = re.match(r" *([*-]|\d+\.) ", line) is not None
        if is_item and (line.startswith(" ") or after_paragraph) and lines and lines[-1].strip():
            lines.append("")
        if is_item:
            after_paragraph = False
        elif not line.strip():
            after_paragraph = True
        lines.append(line)
    return "\n".join(lines)


def notebook_page(path: str) -> dict[str, str]:
    """Return the page of a notebook: its texts, and its code in blocks."""
    parts = []
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return {f"{path}.md": outside_code("\n\n".join(parts) + "\n", partial(readable, path))}


def source_pages(path: str) -> dict[str, str]:
    """Return the page of a source file, or of a folder and its files. Searches skip them."""
    file = ROOT / path
    if file.suffix == ".ipynb":
        return notebook_page(path)
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if not file.is_dir():
        language = LANGUAGES.get(file.suffix, "text")
        text = file.read_text(encoding="utf-8")
        return {f"{path}.md": f"{head}```` {language}\n{text}````\n"}
    names = sorted(entry.name for entry in file.iterdir())
    listed = "".join(f"* [{name}]({file.name}/{name}.md)\n" for name in names)
    texts = {f"{path}.md": head + listed}
    for name in names:
        texts |= source_pages(f"{path}/{name}")
    return texts


def escaped(text: str) -> str:
    """Return a description as Markdown that shows its characters. Code stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [MARKED.sub(r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


@cache
def documented() -> dict[str, dictionary.Table]:
    return dictionary.tables(ROOT / "stages")


def chapter(table: dictionary.Table) -> str:
    return table.path.relative_to(ROOT / "stages").parts[0]


def by_chapter() -> dict[str, list[dictionary.Table]]:
    """Return the tables of each chapter, in the order of the pipeline."""
    order = [*CHAPTERS, "lib"]
    chapters: dict[str, list[dictionary.Table]] = {name: [] for name in order}
    for table in documented().values():
        chapters[chapter(table)].append(table)
    return {name: tables for name, tables in chapters.items() if tables}


def with_links(text: str, table: dictionary.Table) -> str:
    """Return a description in which the names of other tables are links to these tables."""
    known = documented()

    def link(match: re.Match[str]) -> str:
        name = match[0].replace("\\", "").strip("`")
        if name not in known or name == table.name or name in table.columns:
            return match[0]
        return f"[{match[0]}]({chapter(known[name])}.md#{name})"

    return re.sub(r"`\w+`|\b[a-z]+(?:\\_[a-z]+)+\b(?![\w(])", link, text)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def tables() -> dict[str, str]:
    """Return the pages of the column dictionary: a list of tables, and a page for each chapter."""
    lists = []
    texts = {}
    for name, members in by_chapter().items():
        heading = "Executor" if name == "lib" else name.capitalize()
        lines = [f"## {heading}\n"]
        for table in members:
            meaning = sentence(escaped(first_sentence(table.meaning)))
            lines.append(f"* [`{table.name}`]({name}.md#{table.name}): {meaning}.")
        lists.append("\n".join(lines))
        parts = [f"# Tables: {heading.lower()}\n", *map(table_section, members)]
        texts[f"{TABLES}/{name}.md"] = "\n".join(parts)
    head = (
        "# Tables\n\nEvery table with its columns, types and units, in the order of the pipeline. "
        "The text is that of `bag tables NAME`. Queries and stages contain it.\n\n"
    )
    return {f"{TABLES}/index.md": head + "\n\n".join(lists) + "\n"} | texts


def table_section(table: dictionary.Table) -> str:
    path = table.path.relative_to(ROOT)
    lines = [
        f"## {table.name}\n",
        sentence(with_links(escaped(table.meaning), table)).rstrip(".") + ".\n",
        f"Made by [{path}](../../{path}).\n",
        "| column | type | meaning |",
        "|---|---|---|",
    ]
    for column, (kind, meaning) in table.columns.items():
        text = with_links(escaped(meaning), table)
        lines.append(f"| `{column}` | {escaped(kind)} | {text} |")
    return "\n".join(lines) + "\n"


def gallery() -> list[GalleryQuery]:
    """Return the queries of the gallery. A query's first comment is its title, then the note."""
    pictures = []
    for file in sorted((ROOT / GALLERY).glob("*.sql")):
        text = file.read_text(encoding="utf-8")
        comment = dictionary.HEAD.match(text)[0]  # type: ignore[index]
        query = text.removeprefix(comment)
        title, *note = [line.removeprefix("--").strip() for line in comment.splitlines()]
        path = str(file.relative_to(ROOT))
        pictures.append(GalleryQuery(path, title, " ".join(note), query.strip()))
    return pictures


def gallery_page() -> str:
    """Return the page of the gallery: each query with its picture."""
    parts = [
        "# Gallery\n\nEach picture is one query of the default model's tables. "
        "`bag plot` draws it, for another model with `-p subject=NAME`. Change a copy.\n"
    ]
    for picture in gallery():
        file, drawn = Path(picture.path).name, Path(picture.drawn).name
        command = f"bag plot {picture.path} -p subject=abacus -o {Path(file).stem}.png"
        parts.append(
            f"## {picture.title}\n\n{picture.note}\n\n![{picture.title}]({drawn})\n\n"
            f'``` sql title="{file}"\n{picture.query}\n```\n\n```sh\n{command}\n```\n'
        )
    return "\n".join(parts)


def pictures(texts: dict[str, str]) -> list[str]:
    """Return the pictures that the pages show, paths from the root."""
    paths: set[str] = set()
    for page, text in texts.items():
        paths |= linked(page, text)
    return sorted(path for path in paths if Path(path).suffix in PICTURES)


def navigation() -> list[dict[str, Any]]:
    """Return the site's menu, in the order of the pipeline."""
    chapters = [{room.capitalize(): f"stages/{room}/README.md"} for room in ROOMS]
    dictionary_pages: list[dict[str, str]] = [{"All tables": f"{TABLES}/index.md"}]
    for name in by_chapter():
        title = "Executor" if name == "lib" else name.capitalize()
        dictionary_pages.append({title: f"{TABLES}/{name}.md"})
    guides = [{title: page} for title, page in GUIDES.items()]
    notes = [{"Notes": "docs/notes/README.md"}]
    for file in sorted(ROOT.glob("docs/notes/[a-z]*.md")):
        title = file.stem.replace("-", " ").capitalize()
        title = title.replace("gpu", "GPU").replace("Gpu", "GPU").replace("Dvc", "DVC")
        title = title.replace("Sql", "SQL").replace(" ci", " CI")
        notes.append({title: f"docs/notes/{file.name}"})
    return [
        {"Home": "README.md"},
        {"Chapters": chapters},
        {"Guides": guides},
        {"Tables": dictionary_pages},
        {"Gallery": f"{GALLERY}/index.md"},
        {"Glossary": "docs/glossary.md"},
        {"Notes": notes},
        {"Contributing": [{"Contributing": "CONTRIBUTING.md"}, {"Changelog": "CHANGELOG.md"}]},
    ]
