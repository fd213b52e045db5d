"""Build the parts of a page: fields, tables, figures with their query, and sentences.

All of it is plain HTML with labels.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import polars as pl
from dash import dcc, html

from stages.explorer.charts import Figure
from stages.explorer.question import Question

Part = Any  # a component of Dash, or text
Link = Callable[[dict[str, Any]], str | None]  # row -> address to which a cell leads
SHOWN = 1000  # rows of a table that a page shows at most
LISTED = 12  # items of a list that a cell shows at most
GRAPH: Any = {
    "displaylogo": False,
    "showSendToCloud": False,  # nothing leaves this machine
    "responsive": False,
    "modeBarButtonsToRemove": ["toImage", "sendChartToCloud", "select2d", "lasso2d"],
    "scrollZoom": True,
}


@dataclass(frozen=True)
class Field:
    """Something to fill in.

    kind: text, number, choice, many (several options), tick, slider (over the options) or sql;
    options: values, or dicts with `value` and `label`.
    """

    name: str
    label: str
    value: Any
    kind: str = "text"
    options: Sequence[Any] = dataclasses.field(default_factory=list)
    hint: str = ""


def identity(field: Field) -> dict[str, str]:
    """Return the id of a field on the page."""
    return {"field": field.name}


def text_of(value: Any) -> str:
    """Return a field's value as the address has it."""
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def labelled(options: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the options of a choice from a dict: value -> label."""
    return [{"label": label, "value": value} for value, label in options.items()]


def option(value: Any) -> dict[str, Any]:
    """Return an option with a label, which is the value unless it has another."""
    return value if isinstance(value, dict) else {"label": str(value), "value": value}


def shown(field: Field) -> Part:
    """Return a field with its label."""
    control = CONTROLS[field.kind](field)
    if field.kind == "tick":
        legend = html.Legend(field.label)
        return html.Fieldset([legend, control], className="field ticks")
    key = json.dumps(identity(field), separators=(",", ":"))
    label = html.Label(field.label, htmlFor=key, id=f"label-{field.name}")
    return html.Div([label, control], className=f"field {field.kind}")


def _text(field: Field) -> Part:
    value, hint = str(field.value), field.hint
    return dcc.Input(id=identity(field), type="text", value=value, debounce=True, placeholder=hint)


def _number(field: Field) -> Part:
    return dcc.Input(
        id=identity(field),
        type="text",
        inputMode="numeric",
        value=str(field.value),
        debounce=True,
        size="7",
    )


def _choice(field: Field) -> Part:
    return dcc.Dropdown(
        id=identity(field),
        options=_options(field),
        value=field.value,
        clearable=False,
        searchable=len(field.options) > 8,
    )


def _many(field: Field) -> Part:
    return dcc.Dropdown(
        id=identity(field),
        options=_options(field),
        value=_values(field),
        multi=True,
        placeholder=field.hint,
    )


def _tick(field: Field) -> Part:
    options, values = _options(field), _values(field)
    return dcc.Checklist(id=identity(field), options=options, value=values, inline=True)


def _slider(field: Field) -> Part:
    """Return a slider over the numbers of the options; an unknown value stands for the first."""
    options = _options(field)
    values = [str(choice["value"]) for choice in options]
    labels = [choice["label"] for choice in options]
    value = str(field.value)
    return dcc.Slider(
        id=identity(field),
        min=0,
        max=len(options) - 1,
        step=None,
        marks=dict(enumerate(labels)),
        value=values.index(value) if value in values else 0,
        included=False,
        allow_direct_input=False,
    )


def _sql(field: Field) -> Part:
    text = str(field.value)
    rows = min(18, max(5, text.count("\n") + 2))
    return dcc.Textarea(id=identity(field), value=text, rows=rows, spellCheck=False)


CONTROLS: dict[str, Callable[[Field], Part]] = {
    "text": _text,
    "number": _number,
    "choice": _choice,
    "many": _many,
    "tick": _tick,
    "slider": _slider,
    "sql": _sql,
}


def _options(field: Field) -> list[dict[str, Any]]:
    return list(map(option, field.options))


def _values(field: Field) -> list[str]:
    """Return the values of a field that has several."""
    return list(filter(None, str(field.value).split("|")))


def aria(**named: str) -> dict[str, Any]:
    """Return attributes for screen readers, such as aria-label."""
    return {f"aria-{name}": value for name, value in named.items()}


def alert(text: str) -> Part:
    """Return a message about a problem."""
    return html.P(text, className="alert", role="alert")


def note(text: str) -> Part:
    """Return a sentence in small print."""
    return html.P(text, className="note")


def section(title: str, *content: Part) -> Part:
    """Return a section with a heading."""
    return html.Section([html.H2(title), *content])


def number(value: Any) -> str:
    """Return a value as tables show it: floats with four digits, and – for null."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = " …" if len(value) > LISTED else ""
        return ", ".join(map(number, value[:LISTED])) + more
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as 1 row or 2 rows."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def table(
    frame: pl.DataFrame,
    caption: str,
    links: Mapping[str, Link] | None = None,
    most: int = SHOWN,
) -> Part:
    """Return the first `most` rows as a table, with a remark if there are more.

    links: column -> function of a row that returns the address to which a cell leads.
    """
    links = links or {}
    classes = {name: "n" * kind.is_numeric() for name, kind in frame.schema.items()}
    head = []
    for name, alignment in classes.items():
        head.append(html.Th(name.replace("_", " "), scope="col", className=alignment))
    body = []
    for row in frame.head(most).iter_rows(named=True):
        cells = [html.Td(_cell(row, name, links), className=classes[name]) for name in row]
        body.append(html.Tr(cells))
    more = f" The first {most:,} of {frame.height:,} rows." if frame.height > most else ""
    label = aria(label=caption)
    rows = html.Table([html.Thead(html.Tr(head)), html.Tbody(body)], **label)
    region = html.Div(rows, className="scroll", tabIndex=0, role="region", **label)
    return html.Div([html.P(caption + more, className="caption"), region])


def _cell(row: dict[str, Any], name: str, links: Mapping[str, Link]) -> Part:
    """Return a cell's text, as a link if it leads anywhere."""
    text = number(row[name])
    href = name in links and links[name](row)
    return dcc.Link(text, href=href) if href else text


def filled(query: str, parameters: Mapping[str, Any]) -> str:
    """Return a query with the values of its $parameters, so that it runs anywhere."""

    def literal(match: re.Match) -> str:
        value = parameters[match[1]]
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return str(value)

    return re.sub(r"\$(\w+)", literal, dedent(query).strip())


def sql(
    query: str,
    parameters: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Part:
    """Return a view's query, to be read, copied with one click, or taken along and changed.

    Without parameters the query is complete, even if it has a $. about: has the subject and the
    operator to take along, if the parameters lack them.
    """
    text = dedent(query).strip() if parameters is None else filled(query, parameters)
    known = {**(about or {}), **(parameters or {})}
    keys = [name for name in ("subject", "operator") if name in known]
    taken: dict[str, Any] = {name: known[name] for name in keys}
    edit = dcc.Link("edit and run", href="/find" + Question({**taken, "sql": text}).search())
    copy = dcc.Clipboard(content=text, title="copy the SQL", className="copy")
    tools = html.Div([copy, edit], className="tools")
    return html.Details([html.Summary("SQL"), tools, html.Pre(html.Code(text))], className="sql")


def later(view: str, name: str, question: Question) -> Part:
    """Return a space that is filled in once the page shows its surroundings; see View.later."""
    request = {"view": view, "name": name, "question": question.search()}
    store = dcc.Store(id={"part": "request", "name": name}, data=request)
    return html.Div([store, html.Div(id={"part": "later", "name": name})])


def figure(name: str, drawn: Figure, caption: str, query: Part, below: Part = None) -> Part:
    """Return a figure, its caption, its query, and buttons that save it with its query."""
    graph = dcc.Graph(figure=drawn, config=GRAPH, id={"graph": name})
    picture = html.Div(graph, role="img", className="picture", **aria(label=caption))
    tools = html.Div([_save("svg"), _save("png"), query], className="tools")
    content = [picture, html.Figcaption(caption), tools, below]
    return html.Figure(content, id=f"figure-{name}")


def _save(kind: str) -> Part:
    """Return a button that saves its figure; assets/explorer.js waits for a click."""
    data: dict[str, Any] = {"data-save": kind}
    return html.Button(f"Save {kind.upper()}", **data)
