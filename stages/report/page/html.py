"""Puts the page together: the template, its style and scripts, what it is declared to show, and the payloads."""

import ast
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stages.lib.core.settings import ParamsError
from stages.lib.dictionary import tables
from stages.report.page.contents import FOLDER, Contents
from stages.report.page.rows import query
from stages.report.settings import Report

SCRIPTS = ["payloads.js", "tables.js", "items.js", "maps.js", "neurons.js", "page.js"]
OPERATORS = {"add": "+", "subtract": "−", "multiply": "×", "divide": "÷"}
WORDS = (
    "select from where with group by order join left full using union all case when then else end as and or over partition filter having "
    "limit qualify exists not in is null on"
)
REMARKS_AND_WORDS = re.compile(rf"(?P<remark>--[^\n]*)|(?P<word>\b(?:{WORDS.replace(' ', '|')})\b)")


def page(contents: Contents, settings: Report, subjects: list[dict[str, Any]], payloads: dict[str, str]) -> str:
    """subjects: what is known about each; payloads: by name, <subject>/<what> and shared/<what>."""
    jinja = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    jinja.filters |= {"code": _code, "sql": _sql, "asked": _asked}
    sources = _sources(contents)
    return jinja.get_template("page.html.j2").render(
        contents=contents, settings=settings, subjects=subjects, payloads=payloads, operators=OPERATORS, sources=sources,
        queries={item.id: query(item, item.shared) for item in contents.items() if item.table},
        declared=_declared(contents, settings, subjects, sources),
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup("\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)),
    )  # fmt: skip


def bounded(text: str, settings: Report, payloads: dict[str, str]) -> str:
    """The page, if it is not too large. Raises ParamsError, which says what to lower."""
    size = len(text.encode()) / 2**20
    if size <= settings.largest_mib:
        return text
    largest = sorted(payloads, key=lambda name: (-len(payloads[name]), name))[:3]
    parts = ", ".join(f"{name} {len(payloads[name]) / 2**20:.1f}" for name in largest)
    raise ParamsError(
        f"stages/report/params.yaml: the page would have {size:.1f} MiB, more than report.largest_mib = {settings.largest_mib:g}. Raise "
        f"it, or lower report.neurons_drawn, map_side, detail_side, neurons_listed, rows or figure_quality. The largest parts, in MiB: "
        f"{parts}"
    )


def _sources(contents: Contents) -> dict[str, dict[str, Any]]:
    """Of each table that some stage writes: its meaning, its columns, and the stage."""
    known, found = tables(), {}
    for name in sorted({item.table for item in contents.items() if item.table} & known.keys()):
        path, meaning, columns = known[name].path, known[name].meaning.rstrip("."), known[name].columns
        found[name] = {"path": str(path), "sql": path.suffix == ".sql", "text": _text(path), "meaning": meaning, "columns": columns}
    return found


def _text(path: Path) -> str:
    """A query, or what a Python stage says of itself, without the meaning of columns, which the page lists apart."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return re.sub(r"\A(--[^\n]*\n)+", "", text).strip()
    return re.split(r"^Table ", ast.get_docstring(ast.parse(text)) or "", flags=re.MULTILINE)[0].strip()


def _declared(contents: Contents, settings: Report, subjects: list[dict[str, Any]], sources: dict[str, Any]) -> dict[str, Any]:
    """What the scripts need to know of the contents."""
    keys = {"id", "title", "table", "operators", "shares", "empty", "shared", "figures"}
    items = [item.model_dump(include=keys) | {"made": item.table in sources} for item in contents.items()]
    facts = [fact.model_dump(include={"title", "by", "table", "shares", "empty"}) for fact in contents.browser.facts]
    return {"subjects": subjects, "perPage": settings.rows_per_page, "items": items, "facts": facts}


def _code(text: str) -> Markup:
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _sql(text: str) -> Markup:
    """SQL with its remarks quiet and its words in colour."""
    return Markup(REMARKS_AND_WORDS.sub(lambda found: f'<span class="{found.lastgroup}">{found[0]}</span>', str(escape(text))))


def _asked(text: str) -> Markup:
    """A query with a place for the selected subject."""
    return Markup(str(escape(text)).replace("$subject", "&#39;<span data-subject></span>&#39;"))
