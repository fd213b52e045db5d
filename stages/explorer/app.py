"""Serve the app: an address is a view, and a view is fields and what they ask for.

A changed field changes the address, and the address changes the view. The app answers only its own
pages: it refuses requests for another host or from another page, and its pages may load nothing
from elsewhere.
"""

import base64
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import dash
import flask
from dash import ALL, MATCH, Input, Output, State, dcc, html, no_update
from werkzeug.exceptions import HTTPException

from stages.explorer import parts
from stages.explorer.explorer import Explorer
from stages.explorer.pages import LISTED, VIEWS, View
from stages.explorer.parts import Field, Part, text_of
from stages.explorer.pictures import saved
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views import find
from stages.lib.core.settings import ParamsError

ANY = (Exception, ParamsError)  # ParamsError is a SystemExit, which would end the program
OWN = {"localhost", "127.0.0.1", "::1"}  # hosts of the app's own pages
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# fields that links between views keep
COMMON = ("subject", "operator", "layer", "neuron", "prompt")


def made(project: Project) -> dash.Dash:
    """Return the app of a project."""
    explorer = Explorer(project)
    app = dash.Dash(
        __name__,
        title="bag explore",
        update_title="",
        serve_locally=True,
        assets_folder="assets",
        compress=False,
    )
    app.layout = _layout()
    _guard(app.server)
    _show_views(app, explorer)
    _hand_out_files(app, explorer)
    return app


def _show_views(app: dash.Dash, explorer: Explorer) -> None:
    """Make a view of an address, its slow parts afterwards, and an address of changed fields."""

    def show(
        path: str,
        search: str,
        ticks: int,
        values: list,
        ids: list[dict[str, str]],
        before: dict | None,
    ) -> tuple:
        names = [key["field"] for key in ids]
        on_page = dict(zip(names, map(text_of, values), strict=True))
        if before and dash.ctx.triggered_id == "tick":
            # the page waits for a model: what is being typed into its fields does not matter
            explorer.models.start()
            on_page = before["fields"]
        *changes, is_settled = page(explorer, path, search, on_page, before)
        # one more tick, after this answer: a browser drops an answer once it asks again, so that
        # ticks faster than a slow machine's answers would leave the page as it is for ever
        return *changes, ticks if is_settled else ticks + 1

    def later(request: dict[str, str]) -> Part:
        make = VIEWS[request["view"]].later[request["name"]]
        question, problem = _read(request["question"])
        return parts.alert(problem) if problem else tried(make, explorer, question)

    values, ids = State({"field": ALL}, "value"), State({"field": ALL}, "id")
    search, shown = State("url", "search"), State("shown", "data")
    app.callback(
        Output("fields", "children"),
        Output("content", "children"),
        Output("shown", "data"),
        Output("head", "children"),
        Output("tick", "max_intervals"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("tick", "n_intervals"),
        values,
        ids,
        shown,
    )(show)
    app.callback(
        Output({"part": "later", "name": MATCH}, "children"),
        Input({"part": "request", "name": MATCH}, "data"),
    )(later)
    app.clientside_callback(
        dash.ClientsideFunction("explorer", "address"),
        Output("url", "search"),
        Input({"field": ALL}, "value"),
        Input({"field": ALL}, "n_blur"),
        ids,
        search,
        shown,
        prevent_initial_call=True,
    )


def page(
    explorer: Explorer,
    path: str,
    search: str,
    on_page: dict[str, str],
    before: dict[str, Any] | None,
) -> tuple:
    """Return what a page has to change to show an address.

    These are its fields, its content, what to remember of them and the navigation, each no_update
    if it stays, and whether the page stays as it is, or has to ask again.

    on_page: the fields as they are filled in; before: what the page remembers, None if it is new.
    """
    explorer.refresh()
    tab = before["tab"] if before else uuid4().hex
    explorer = explorer.for_tab(tab)
    view = VIEWS.get((path or "").strip("/"), LISTED[0])
    question, problem = _read(search)
    fields, content = answered(explorer, view, question)
    now: dict[str, Any] = {
        "tab": tab,
        "view": view.path,
        "fields": _texts(fields),
        "options": str([field.options for field in fields]),
        "known": explorer.known(),
        "problem": problem,
    }
    if now == before:
        return *[no_update] * 4, explorer.settled(now["known"])
    drawn = parts.alert(problem) if problem else content()  # this may start work
    shown: Any = no_update
    if not _same_fields(now, before) or on_page != now["fields"]:
        shown = list(map(parts.shown, fields))
    links = _navigation(view, explorer, question)
    return shown, drawn, now, links, explorer.settled(now["known"])


def _read(search: str) -> tuple[Question, str]:
    """Return the question of an address, empty if it cannot be read, and what is wrong with it."""
    try:
        return Question.parse(search), ""
    except ExplorerError as error:
        return Question({}), str(error)


def _texts(fields: list[Field]) -> dict[str, str]:
    """Return the fields' values as the address has them."""
    return {field.name: text_of(field.value) for field in fields}


def _same_fields(now: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Return whether a page already has the fields of a view, with the same options."""
    if before is None:
        return False
    return before["view"] == now["view"] and before["options"] == now["options"]


def _hand_out_files(app: dash.Dash, explorer: Explorer) -> None:
    """Serve pictures with their SQL, and the rows of a query."""

    def take(_: list[int], search: str) -> tuple:
        if not any(trigger["value"] for trigger in dash.ctx.triggered):
            return no_update, no_update
        kind = dash.ctx.triggered_id["take"]
        try:
            content = taken(explorer, search, kind)
        except ANY as error:
            return no_update, parts.alert(sentence(error))
        return dcc.send_bytes(content, f"bag.{kind}"), f"Saved bag.{kind}."

    app.callback(
        Output("rows", "data"),
        Output("message", "children", allow_duplicate=True),
        Input({"take": ALL}, "n_clicks"),
        State("url", "search"),
        prevent_initial_call=True,
    )(take)
    app.callback(
        Output("download", "data"),
        Output("message", "children"),
        Input("picture", "data"),
        prevent_initial_call=True,
    )(_saved)


def taken(explorer: Explorer, search: str, kind: str) -> bytes:
    """Return all rows of the query of the view `find` at an address, as a file.

    Raises ExplorerError if there are too many.
    """
    explorer.refresh()
    question = Question.parse(search)
    complete = _complete(question, find.fields(explorer, question))
    return find.file(explorer.project, find.query(explorer, complete), kind)


def answered(
    explorer: Explorer,
    view: View,
    question: Question,
) -> tuple[list[Field], Callable[[], Part]]:
    """Return a view's fields, and a function that makes its content.

    If the question cannot be answered, the content is a message.
    """
    try:
        fields = view.fields(explorer, question)
        return fields, lambda: tried(view.content, explorer, _complete(question, fields))
    except ANY as error:
        text = sentence(error)
    try:
        fields = view.fields(explorer, Question({}))
    except ANY:  # the message above has the reason
        fields = []
    return [_kept(field, question) for field in fields], lambda: parts.alert(text)


def _complete(question: Question, fields: list[Field]) -> Question:
    """Return a question with the values of all fields, even those that the address leaves out."""
    return question.changed(**_texts(fields))


def _kept(field: Field, question: Question) -> Field:
    """Return a field with the value of the question, right or wrong."""
    text, options = question.get(field.name, text_of(field.value)), field.options
    allowed = [parts.option(option)["value"] for option in options]
    if field.kind == "choice" and text not in allowed:
        options = [*options, text]
    return replace(field, value=text, options=options)


def tried(
    make: Callable[[Explorer, Question], Part],
    explorer: Explorer,
    question: Question,
) -> Part:
    """Return a part of a page, or a message if it cannot be made."""
    try:
        return make(explorer, question)
    except ANY as error:
        return parts.alert(sentence(error))


def sentence(error: BaseException) -> str:
    """Return the message of an error. An unforeseen error is also logged, with its place."""
    if isinstance(error, (ExplorerError, ParamsError)):
        return str(error)
    logging.getLogger(__name__).error("a page could not be made", exc_info=error)
    problem = f"This went wrong, {type(error).__name__}: {error}."
    return f"{problem} The terminal that runs `bag explore` shows where."


def _layout() -> Part:
    message = html.Div(id="message", role="status")
    content = html.Div(id="content", **parts.aria(live="polite"))
    fields = html.Div(id="fields", role="form", **parts.aria(label="question"))
    return html.Div([
        dcc.Location(id="url", refresh=False),
        dcc.Store(id="shown"),
        dcc.Store(id="picture"),
        dcc.Download(id="download"),
        dcc.Download(id="rows"),
        dcc.Interval(id="tick", interval=400, n_intervals=0, max_intervals=0),
        html.Header(id="head"),
        html.Main([fields, message, content]),
    ])  # fmt: skip


def _navigation(view: View, explorer: Explorer, question: Question) -> list[Part]:
    """Return links to the views, which keep the fields that several views have."""
    kept = {name: question[name] for name in COMMON if name in question}
    search = Question(kept).search()
    links = [_view_link(other, f"/{other.path}{search}", other is view) for other in LISTED]
    return [html.Strong("bag explore"), html.Nav(links, **parts.aria(label="views"))]


def _view_link(view: View, href: str, is_current: bool) -> Part:
    if is_current:
        return html.A(view.title, href=href, **parts.aria(current="page"))
    return dcc.Link(view.title, href=href)


def _saved(picture: dict[str, str] | None) -> tuple:
    """Return the file of a picture, and a message."""
    if not picture:
        return no_update, no_update
    try:
        query, address = picture["query"], picture["page"]
        content = saved(picture["data"], picture["format"], query, address)
        name = f"{picture['name']}.{picture['format']}"
    except (ExplorerError, KeyError) as error:
        return no_update, parts.alert(str(error))
    data = base64.b64encode(content).decode()
    file = {"content": data, "base64": True, "filename": name}
    return file, f"Saved {name}, with its SQL in it."


def _guard(server: flask.Flask) -> None:
    """Refuse requests that are not from our own pages, and let our pages request nothing else."""

    @server.before_request
    def refuse() -> tuple[str, int] | None:
        if _is_own(flask.request.headers.get("Origin"), flask.request.host):
            return None
        return "bag explore answers this machine's own browser alone, at http://localhost", 403

    @server.errorhandler(Exception)
    def explain(error: Exception) -> Any:
        """Answer a request that failed with status 400: requests of our own pages do not fail."""
        if isinstance(error, HTTPException):
            return error
        logging.getLogger(__name__).error("a request could not be answered", exc_info=error)
        problem = f"this is not a request of a page of bag explore: {type(error).__name__}"
        return problem, 400

    @server.after_request
    def restrict(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _is_own(origin: str | None, host: str) -> bool:
    """Return whether a request is for this machine, and from one of its pages if from any."""
    try:
        from_own_page = not origin or urlsplit(origin).netloc == host
        return from_own_page and urlsplit(f"//{host}").hostname in OWN
    except ValueError:  # one of them is not an address
        return False
