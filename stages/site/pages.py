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
SUBJECT = "abacus"  # the model of the gallery's pictures
ROOMS = (*CHAPTERS, "explorer")
TABLES = "docs/tables"  # a folder of the site, not of the repository
SERVED = {".parquet", ".png", ".svg", ".webp"}  # files that are part of the site as they are
ACRONYMS = {"ci": "CI", "dvc": "DVC", "gpu": "GPU", "sql": "SQL"}  # in titles of notes
LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".cff": "yaml"}
GUIDES = {
    "Quickstart": "examples/quickstart.ipynb.md",
    "Console": "docs/console.md",
    "Your own model": "docs/models.md",
    "A first look at your model": "examples/own_model.ipynb.md",
    "Model families": "docs/families.md",
    "A real model: Qwen": "examples/qwen/README.md",
    "A real model: details": "examples/qwen/details.md",
    "Cores, GPUs, machines": "docs/cluster.md",
    "Share and verify": "docs/sharing.md",
    "Bridges": "docs/bridges.md",
}
FIRST_IN_SEARCHES = "---\nsearch:\n  boost: 4\n---\n\n"
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
MARKUP = re.compile(r"([\\*_<\[\]|])")


@dataclass(frozen=True)
class GalleryQuery:
    """A query of the gallery.

    path: its file, from the root; title: what it shows; note: what to look at; query: its SQL.
    """

    path: str
    title: str
    note: str
    query: str

    @property
    def picture(self) -> str:
        """Return the path of the query's picture, from the root."""
        return str(Path(self.path).with_suffix(".webp"))


def markdown_files() -> list[str]:
    """Return the repository's Markdown files that are pages of the site."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
    paths += [ROOT / "stages" / room / "README.md" for room in ROOMS]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def pages() -> dict[str, str]:
    """Return every page's Markdown by its path in the site."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in markdown_files()}
    texts |= tables() | {f"{GALLERY}/index.md": gallery_page()}
    sources: dict[str, str] = {}
    for page, text in texts.items():
        for path in filter(is_source, linked_paths(page, text)):
            sources |= source_pages(path)
        texts[page] = outside_code(text, partial(for_mkdocs, page))
    texts["docs/glossary.md"] = FIRST_IN_SEARCHES + texts["docs/glossary.md"]
    return texts | sources


def is_source(path: str) -> bool:
    """Return whether a linked path is a file or folder that gets a generated page."""
    file = ROOT / path
    return file.exists() and file.suffix not in {*SERVED, ".md"}


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to a text, except to its blocks of code."""
    parts = FENCE.split(text)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def target(page: str, link: str) -> str:
    """Return the path that a page's link leads to, from the root."""
    return os.path.normpath(os.path.join(os.path.dirname(page), link))


def linked_paths(page: str, text: str) -> set[str]:
    """Return the paths that a page links to, from the root: pages, pictures and other files."""
    prose = "".join(FENCE.split(text)[::2])
    return {target(page, match[1]) for match in LINK.finditer(prose)}


def for_mkdocs(page: str, text: str) -> str:
    """Return a page's prose in the form that mkdocs needs.

    Links to source files lead to their pages. Contents of list items are indented by 4 blanks for
    each level: Python-Markdown takes contents that are indented by 2 or 3 blanks for paragraphs
    after the list.
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
    return {f"{path}.md": outside_code("\n\n".join(parts) + "\n", partial(for_mkdocs, path))}


def source_pages(path: str) -> dict[str, str]:
    """Return the pages of a source file, a notebook or a folder, by their paths in the site."""
    file = ROOT / path
    if file.suffix == ".ipynb":
        return notebook_page(path)
    if file.is_dir():
        return folder_pages(path)
    language = LANGUAGES.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8").rstrip("\n")
    return {f"{path}.md": f"{source_head(path)}```` {language}\n{text}\n````\n"}


def folder_pages(path: str) -> dict[str, str]:
    """Return the page that lists a folder's files, and the pages of these files."""
    folder = ROOT / path
    links = []
    texts: dict[str, str] = {}
    for name in sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__"):
        is_generated = is_source(f"{path}/{name}")
        page = f"{name}.md" if is_generated else name
        links.append(f"* [{name}]({folder.name}/{page})\n")
        if is_generated:
            texts |= source_pages(f"{path}/{name}")
    return {f"{path}.md": source_head(path) + "".join(links)} | texts


def source_head(path: str) -> str:
    """Return the top of a source's page: its title, and that searches skip it."""
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"


def escaped(text: str) -> str:
    """Return a description as Markdown, with its special characters escaped. Code stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


@cache
def documented() -> dict[str, dictionary.Table]:
    """Return every table that a query or a stage describes, by its name."""
    return dictionary.tables(ROOT / "stages")


def chapter(table: dictionary.Table) -> str:
    """Return the folder of stages/ that a table is from."""
    return table.path.relative_to(ROOT / "stages").parts[0]


def chapter_title(name: str) -> str:
    """Return a chapter's title. The tables of lib are those of the executor."""
    return "Executor" if name == "lib" else name.capitalize()


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
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def tables() -> dict[str, str]:
    """Return the pages of the column dictionary: a list of tables, and a page for each chapter."""
    lists = []
    texts = {}
    for name, members in by_chapter().items():
        heading = chapter_title(name)
        lines = [f"## {heading}\n"]
        for table in members:
            meaning = sentence(escaped(first_sentence(table.meaning)))
            lines.append(f"* [`{table.name}`]({name}.md#{table.name}): {meaning}.")
        lists.append("\n".join(lines))
        parts = [f"# Tables: {heading.lower()}\n", *map(table_section, members)]
        texts[f"{TABLES}/{name}.md"] = "\n".join(parts)
    head = (
        "# Tables\n\nEvery table with its columns, types and units, in the order of the pipeline. "
        "`bag tables NAME` prints the same text. It is part of the query or stage that makes the "
        "table.\n\n"
    )
    return {f"{TABLES}/index.md": head + "\n\n".join(lists) + "\n"} | texts


def table_section(table: dictionary.Table) -> str:
    """Return the section of one table: its meaning, the file that makes it, and its columns."""
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
    """Return the queries of the gallery, in order.

    The first line of a file's comment is the title, the other lines are the note. Raises ValueError
    if a file does not begin with such a comment.
    """
    queries = []
    for file in sorted((ROOT / GALLERY).glob("*.sql")):
        text = file.read_text(encoding="utf-8")
        comment = dictionary.HEAD.match(text)[0]  # type: ignore[index]
        path = str(file.relative_to(ROOT))
        title, *note = [line.removeprefix("--").strip() for line in comment.splitlines()] or [""]
        if not title or not note:
            problem = f"{path} does not begin with a title and a note"
            raise ValueError(f"{problem}; add a comment: the title, then lines on what to look at")
        query = text.removeprefix(comment).strip()
        queries.append(GalleryQuery(path, title, " ".join(note), query))
    return queries


def gallery_page() -> str:
    """Return the page of the gallery: each query with its picture."""
    parts = [
        f"# Gallery\n\nEach picture shows the result of one query on the model `{SUBJECT}`. The "
        "command below it draws the picture; `-p subject=NAME` selects another model. To change a "
        "picture, copy its query and edit the copy.\n"
    ]
    for query in gallery():
        file, picture = Path(query.path).name, Path(query.picture).name
        command = f"bag plot {query.path} -p subject={SUBJECT} -o {Path(file).stem}.png"
        parts.append(
            f"## {query.title}\n\n{query.note}\n\n![{query.title}]({picture})\n\n"
            f'``` sql title="{file}"\n{query.query}\n```\n\n```sh\n{command}\n```\n'
        )
    return "\n".join(parts)


def served(texts: dict[str, str]) -> list[str]:
    """Return the pictures and Parquet files that the pages lead to, paths from the root."""
    paths: set[str] = set()
    for page, text in texts.items():
        paths |= linked_paths(page, text)
    return sorted(path for path in paths if Path(path).suffix in SERVED)


def navigation() -> list[dict[str, Any]]:
    """Return the site's menu, in the order of the pipeline."""
    return [
        {"Home": "README.md"},
        {"Chapters": [{room.capitalize(): f"stages/{room}/README.md"} for room in ROOMS]},
        {"Guides": [{title: page} for title, page in GUIDES.items()]},
        {"Tables": tables_menu()},
        {"Gallery": f"{GALLERY}/index.md"},
        {"Glossary": "docs/glossary.md"},
        {"Notes": notes_menu()},
        {"Contributing": [{"Contributing": "CONTRIBUTING.md"}, {"Changelog": "CHANGELOG.md"}]},
    ]


def tables_menu() -> list[dict[str, str]]:
    """Return the menu of the column dictionary: all tables, then each chapter."""
    menu = [{"All tables": f"{TABLES}/index.md"}]
    for name in by_chapter():
        menu.append({chapter_title(name): f"{TABLES}/{name}.md"})
    return menu


def notes_menu() -> list[dict[str, str]]:
    """Return the menu of docs/notes. A note's title is the name of its file."""
    menu = [{"Notes": "docs/notes/README.md"}]
    for file in sorted(ROOT.glob("docs/notes/[a-z]*.md")):
        words = [ACRONYMS.get(word, word) for word in file.stem.split("-")]
        menu.append({sentence(" ".join(words)): f"docs/notes/{file.name}"})
    return menu


def listed(menu: list[Any] | dict[str, Any] | str) -> list[str]:
    """Return the pages of a menu, in its order."""
    if isinstance(menu, str):
        return [menu]
    parts = list(menu.values()) if isinstance(menu, dict) else menu
    return [page for part in parts for page in listed(part)]
