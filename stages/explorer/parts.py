"""What views are put together from: fields, tables, figures with their query, sentences. All of it is plain HTML with labels."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

import polars as pl
from dash import dcc, html

from stages.explorer.charts import Figure
from stages.explorer.question import Question

Part = Any  # a component of Dash, or text
Link = Callable[[dict[str, Any]], str | None]  # of a row: where a cell leads
SHOWN = 1000  # rows of a table that a page shows at most


@dataclass(frozen=True)
class Field:
    """Something to fill in. kind: text, number, choice, many (several of the options), tick, slider (of the options), or sql."""

    name: str
    label: str
    value: Any
    kind: str = "text"
    options: Sequence[Any] = field(default_factory=list)
    hint: str = ""


def identity(one: Field) -> dict[str, str]:
    return {"field": one.name}


def text_of(value: Any) -> str:
    """A field's value as the address has it."""
    return "|".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def labelled(options: Mapping[str, str]) -> list[dict[str, str]]:
    """Options of a choice: value -> what it is called."""
    return [{"label": label, "value": value} for value, label in options.items()]


def shown(one: Field) -> Part:
    """A field with its label."""
    key, options = (
        identity(one),
        [option if isinstance(option, dict) else {"label": str(option), "value": option} for option in one.options],
    )
    name = json.dumps(key, separators=(",", ":"))
    several = [part for part in str(one.value).split("|") if part] if one.kind in ("many", "tick") else []
    inside: Part
    if one.kind == "number":
        inside = dcc.Input(id=key, type="text", inputMode="numeric", value=str(one.value), debounce=True, size="7")
    elif one.kind == "choice":
        inside = dcc.Dropdown(id=key, options=options, value=one.value, clearable=False, searchable=len(options) > 8)
    elif one.kind == "many":
        inside = dcc.Dropdown(id=key, options=options, value=several, multi=True, placeholder=one.hint)
    elif one.kind == "tick":
        inside = dcc.Checklist(id=key, options=options, value=several, inline=True)
        return html.Fieldset([html.Legend(one.label), inside], className="field ticks")
    elif one.kind == "slider":
        marks = {place: option["label"] for place, option in enumerate(options)}
        place = next((place for place, option in enumerate(options) if str(option["value"]) == str(one.value)), 0)
        inside = dcc.Slider(
            id=key, min=0, max=len(options) - 1, step=None, marks=marks, value=place, included=False, allow_direct_input=False
        )
    elif one.kind == "sql":
        inside = dcc.Textarea(id=key, value=str(one.value), rows=min(18, max(5, str(one.value).count("\n") + 2)), spellCheck=False)
    else:
        inside = dcc.Input(id=key, type="text", value=str(one.value), debounce=True, placeholder=one.hint)
    return html.Div([html.Label(one.label, htmlFor=name, id=f"label-{one.name}"), inside], className=f"field {one.kind}")


def aria(**named: str) -> dict[str, Any]:
    """What a screen reader is told."""
    return {f"aria-{name}": value for name, value in named.items()}


def alert(text: str) -> Part:
    return html.P(text, className="alert", role="alert")


def note(text: str) -> Part:
    return html.P(text, className="note")


def section(title: str, *inside: Part) -> Part:
    return html.Section([html.H2(title), *inside])


def number(value: Any) -> str:
    """A value as tables show it: four digits, and – for none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(number, value[:12])) + (" …" if len(value) > 12 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(frame: pl.DataFrame, caption: str, links: Mapping[str, Link] | None = None, most: int = SHOWN) -> Part:
    """Rows as a table; links: column -> where its cells lead. What is not shown is said."""
    links, some = links or {}, frame.head(most)
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    head = html.Tr(
        [html.Th(name.replace("_", " "), scope="col", className="n" if of else "") for name, of in zip(frame.columns, numeric, strict=True)]
    )

    def cell(row: dict[str, Any], name: str, of: bool) -> Part:
        text = number(row[name])
        href = links[name](row) if name in links else None
        return html.Td(dcc.Link(text, href=href) if href else text, className="n" if of else "")

    rows = [html.Tr([cell(row, name, of) for name, of in zip(frame.columns, numeric, strict=True)]) for row in some.iter_rows(named=True)]
    more = f" The first {most:,} of {frame.height:,} rows." if frame.height > most else ""
    inside = html.Table([html.Thead(head), html.Tbody(rows)], **aria(label=caption))
    region = html.Div(inside, className="scroll", tabIndex=0, role="region", **aria(label=caption))
    return html.Div([html.P(caption + more, className="caption"), region])


def filled(query: str, parameters: Mapping[str, Any]) -> str:
    """A query with the values of its $parameters written in, so that it can be copied and run anywhere."""

    def literal(found: re.Match) -> str:
        value = parameters[found[1]]
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

    return re.sub(r"\$(\w+)", literal, dedent(query).strip())


def sql(query: str, parameters: Mapping[str, Any] | None = None, about: Mapping[str, Any] | None = None) -> Part:
    """A view's query: shown, copied with one click, or taken along to be changed. Without parameters it is whole, whatever stands in it.

    about: has the subject and the operator that are chosen, which go along, where the parameters do not have them.
    """
    text = dedent(query).strip() if parameters is None else filled(query, parameters)
    copy = dcc.Clipboard(content=text, title="copy the SQL", className="copy")
    known = {**(about or {}), **(parameters or {})}
    chosen: dict[str, Any] = {name: known[name] for name in ("subject", "operator") if name in known}
    edit = dcc.Link("edit and run", href="/find" + Question({**chosen, "sql": text}).search())
    return html.Details([html.Summary("SQL"), html.Div([copy, edit], className="tools"), html.Pre(html.Code(text))], className="sql")


def later(view: str, name: str, question: Question) -> Part:
    """A place that is filled once the page shows what stands around it (see View.later)."""
    asked = {"view": view, "name": name, "question": question.search()}
    return html.Div([dcc.Store(id={"part": "asked", "name": name}, data=asked), html.Div(id={"part": "later", "name": name})])


def figure(name: str, drawn: Figure, caption: str, query: Part, below: Part = None) -> Part:
    """A figure, what it says in words, its query, and buttons that save it with that query inside."""
    config: Any = {
        "displaylogo": False,
        "showSendToCloud": False,  # nothing leaves this machine
        "responsive": False,
        "modeBarButtonsToRemove": ["toImage", "sendChartToCloud", "select2d", "lasso2d"],
        "scrollZoom": True,
    }
    graph = dcc.Graph(figure=drawn, config=config, id={"graph": name})
    buttons = [html.Button(f"Save {kind.upper()}", id={"save": name, "format": kind}, n_clicks=0) for kind in ("svg", "png")]
    picture = html.Div(graph, role="img", className="picture", **aria(label=caption))
    return html.Figure([picture, html.Figcaption(caption), html.Div([*buttons, query], className="tools"), below], id=f"figure-{name}")
