"""Assemble the page: the template, its style and scripts, the items, and the payloads."""

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

SCRIPTS = [
    "payloads.js",
    "tables.js",
    "items.js",
    "maps.js",
    "findings.js",
    "neurons.js",
    "page.js",
]
OPERATORS = {"add": "+", "subtract": "−", "multiply": "×", "divide": "÷"}
KEYWORDS = (
    "select from where with group by order join left full using union all case when then else end "
    "as and or over partition filter having limit qualify exists not in is null on"
)
HIGHLIGHTED = re.compile(
    rf"(?P<remark>--[^\n]*)|(?P<word>\b(?:{KEYWORDS.replace(' ', '|')})\b)",
)
ITEM = {"id", "title", "table", "operators", "shares", "empty", "shared", "figures"}
FACT = {"title", "by", "table", "shares", "empty"}


def page(
    contents: Contents,
    settings: Report,
    subjects: list[dict[str, Any]],
    payloads: dict[str, str],
    root: str,
) -> str:
    """Return the HTML of the page.

    subjects: `about` each model; payloads: <subject>/<what> or shared/<what> -> base64 text; root:
    the project's folder as the page's links name it, such as "..".
    """
    jinja = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    jinja.filters |= {"code": _code, "sql": _sql, "for_console": _for_console}
    sources = _sources(contents)
    listed = [item for item in contents.items() if item.table]
    return jinja.get_template("page.html.j2").render(
        contents=contents,
        settings=settings,
        subjects=subjects,
        payloads=payloads,
        operators=OPERATORS,
        sources=sources,
        queries={item.id: query(item, item.shared) for item in listed},
        declared=_declared(contents, settings, subjects, sources) | {"root": root},
        style=Markup(_read(FOLDER / "style.css")),
        script=Markup("\n".join(_read(FOLDER / name) for name in SCRIPTS)),
    )


def bounded(text: str, settings: Report, payloads: dict[str, str]) -> str:
    """Return the page. Raises ParamsError, which says what to lower, if it is too large."""
    size = len(text.encode()) / 2**20
    if size <= settings.largest_mib:
        return text
    largest = sorted(payloads, key=lambda name: (-len(payloads[name]), name))[:3]
    parts = ", ".join(f"{name} {len(payloads[name]) / 2**20:.1f}" for name in largest)
    raise ParamsError(
        f"stages/report/params.yaml: the page would have {size:.1f} MiB, more than "
        f"report.largest_mib = {settings.largest_mib:g}. Raise it, or lower report.neurons_drawn, "
        "map_side, detail_side, neurons_listed, rows or figure_quality. The largest parts, in MiB: "
        f"{parts}"
    )


def _sources(contents: Contents) -> dict[str, dict[str, Any]]:
    """Return the stage, the meaning and the columns of each table that a stage writes."""
    known, sources = tables(), {}
    names = {item.table for item in contents.items() if item.table}
    for name in sorted(names & known.keys()):
        table = known[name]
        sources[name] = {
            "path": str(table.path),
            "sql": table.path.suffix == ".sql",
            "text": _text(table.path),
            "meaning": table.meaning.rstrip("."),
            "columns": table.columns,
        }
    return sources


def _text(path: Path) -> str:
    """Return a query without its head, or a Python stage's docstring without its tables.

    The page lists the meaning of columns separately.
    """
    text = _read(path)
    if path.suffix == ".sql":
        return re.sub(r"\A(--[^\n]*\n)+", "", text).strip()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return re.split(r"^Table ", docstring, flags=re.MULTILINE)[0].strip()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _declared(
    contents: Contents,
    settings: Report,
    subjects: list[dict[str, Any]],
    sources: dict[str, Any],
) -> dict[str, Any]:
    """Return what the scripts need to know about the contents."""
    items = []
    for item in contents.items():
        items.append(item.model_dump(include=ITEM) | {"made": item.table in sources})
    facts = [fact.model_dump(include=FACT) for fact in contents.browser.facts]
    per_page = settings.rows_per_page
    listed = {"subjects": subjects, "items": items, "facts": facts, "operators": OPERATORS}
    return listed | {"perPage": per_page}


def _code(text: str) -> Markup:
    """Return text with `code` in backticks as HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _sql(text: str) -> Markup:
    """Return SQL as HTML, with its comments quiet and its keywords in colour."""

    def span(match: re.Match) -> str:
        return f'<span class="{match.lastgroup}">{match[0]}</span>'

    return Markup(HIGHLIGHTED.sub(span, str(escape(text))))


def _for_console(text: str) -> Markup:
    """Return a query as HTML, with a space for the selected model."""
    subject = "&#39;<span data-subject></span>&#39;"
    return Markup(str(escape(text)).replace("$subject", subject))
