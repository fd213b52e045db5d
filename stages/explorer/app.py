"""The app: an address is a view, a view is fields and what they ask for. Who changes a field changes the address, and that the view.

It listens to pages of its own alone: requests by another name, or from another page, are refused, and its pages may load nothing from
elsewhere.
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
from stages.explorer.answers import find
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS, View
from stages.explorer.parts import Field, Part, text_of
from stages.explorer.pictures import saved
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from stages.explorer.views.find import query
from stages.lib.core.settings import ParamsError

ANY = (Exception, ParamsError)  # the latter would end a program
OWN = {"localhost", "127.0.0.1", "[::1]"}
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def made(project: Project) -> dash.Dash:
    """The app of a project."""
    explorer = Explorer(project)
    app = dash.Dash(__name__, title="bag explore", update_title="", serve_locally=True, assets_folder="assets", compress=False)
    app.layout = _layout()
    _guard(app.server)
    _show_views(app, explorer)
    _hand_out_files(app, explorer)
    return app


def _show_views(app: dash.Dash, explorer: Explorer) -> None:
    """An address becomes a view, what is dear of it comes later, and a changed field becomes an address."""

    def show(path: str, search: str, _: int, values: list, ids: list, before: dict | None) -> tuple:
        if before and dash.ctx.triggered_id == "tick":  # a page is there, and waits: what is being typed into it is none of its business
            explorer.models.start()
            return page(explorer, path, search, before["fields"], before)
        return page(explorer, path, search, {of["field"]: text_of(value) for of, value in zip(ids, values, strict=True)}, before)

    app.callback(
        Output("fields", "children"), Output("content", "children"), Output("shown", "data"), Output("head", "children"),
        Output("tick", "disabled"), Input("url", "pathname"), Input("url", "search"), Input("tick", "n_intervals"),
        State({"field": ALL}, "value"), State({"field": ALL}, "id"), State("shown", "data"),
    )(show)  # fmt: skip
    app.callback(Output({"part": "later", "name": MATCH}, "children"), Input({"part": "asked", "name": MATCH}, "data"))(
        lambda asked: tried(VIEWS[asked["view"]].later[asked["name"]], explorer, Question.of(asked["question"]))
    )
    app.clientside_callback(
        dash.ClientsideFunction("explorer", "address"), Output("url", "search"), Input({"field": ALL}, "value"),
        Input({"field": ALL}, "n_blur"), State({"field": ALL}, "id"), State("url", "search"), State("shown", "data"),
        prevent_initial_call=True,
    )  # fmt: skip


def page(explorer: Explorer, path: str, search: str, on_page: dict[str, str], before: dict[str, Any] | None) -> tuple:
    """What an address shows, as far as it is not there: fields, content, what to remember of them, navigation; and whether it stays so.

    on_page: the fields as they are filled in there; before: what was remembered, None of a page that is loaded.
    """
    explorer.refresh()
    tab = before["tab"] if before else uuid4().hex
    explorer = explorer.of(tab)
    view, question = VIEWS.get((path or "/").strip("/"), next(iter(VIEWS.values()))), Question.of(search)
    fields, content = answered(explorer, view, question)
    now: dict[str, Any] = {
        "tab": tab,
        "view": view.path,
        "fields": {one.name: text_of(one.value) for one in fields},
        "options": str([one.options for one in fields]),
        "known": explorer.known(),
    }
    if now == before:
        return *[no_update] * 4, explorer.settled(now["known"])
    same = before and all(before[key] == now[key] for key in ("view", "options")) and on_page == now["fields"]
    inside = content()  # this may start work
    shown = no_update if same else [parts.shown(one) for one in fields]
    return shown, inside, now, _navigation(view, explorer, question), explorer.settled(now["known"])


def _hand_out_files(app: dash.Dash, explorer: Explorer) -> None:
    """Pictures, with their SQL in them, and the rows of a query."""

    def take(_: list[int], search: str) -> tuple:
        if not any(one["value"] for one in dash.ctx.triggered):
            return no_update, no_update
        kind = dash.ctx.triggered_id["take"]
        try:
            content = taken(explorer, search, kind)
        except ANY as error:
            return no_update, parts.alert(sentence(error))
        return dcc.send_bytes(content, f"bag.{kind}"), f"Saved bag.{kind}."

    app.callback(
        Output("rows", "data"), Output("said", "children", allow_duplicate=True), Input({"take": ALL}, "n_clicks"), State("url", "search"),
        prevent_initial_call=True,
    )(take)  # fmt: skip

    app.clientside_callback(
        dash.ClientsideFunction("explorer", "picture"), Output("picture", "data"), Input({"save": ALL, "format": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )  # fmt: skip
    app.callback(Output("download", "data"), Output("said", "children"), Input("picture", "data"), prevent_initial_call=True)(_saved)


def taken(explorer: Explorer, search: str, kind: str) -> bytes:
    """All rows of the query that the view `find` shows at this address, as a file. Raises ExplorerError where there are too many."""
    explorer.refresh()
    question = Question.of(search)
    return find.file(explorer.project, query(explorer, _complete(question, VIEWS["find"].fields(explorer, question))), kind)


def answered(explorer: Explorer, view: View, question: Question) -> tuple[list[Field], Any]:
    """A view's fields, and what makes its content; a question that cannot be answered is answered with a sentence."""
    try:
        fields = view.fields(explorer, question)
        return fields, lambda: tried(view.content, explorer, _complete(question, fields))
    except ANY as error:
        text = sentence(error)
    try:
        fields = view.fields(explorer, Question({}))
    except ANY:  # it has been said
        fields = []
    return [_kept(one, question) for one in fields], lambda: parts.alert(text)


def _complete(question: Question, fields: list[Field]) -> Question:
    """What is asked as its fields have it: of those that the address leaves out, what they are then."""
    return question.but(**{one.name: text_of(one.value) for one in fields})


def _kept(one: Field, question: Question) -> Field:
    """A field with what was asked, be it right or wrong."""
    text = question.get(one.name, text_of(one.value))
    known = one.kind != "choice" or text in (option["value"] if isinstance(option, dict) else option for option in one.options)
    return replace(one, value=text, options=one.options if known else [*one.options, text])


def tried(make: Callable[[Explorer, Question], Part], explorer: Explorer, question: Question) -> Part:
    """Part of a page, or a sentence that says why there is none."""
    try:
        return make(explorer, question)
    except ANY as error:
        return parts.alert(sentence(error))


def sentence(error: BaseException) -> str:
    """What a page says of an error; of one that nobody foresaw, the log says where."""
    if isinstance(error, (ExplorerError, ParamsError)):
        return str(error)
    logging.getLogger(__name__).error("a page could not be made", exc_info=error)
    return f"This went wrong, {type(error).__name__}: {error}. Where it did is written where `bag explore` was started."


def _layout() -> Part:
    kept = [
        dcc.Store(id="shown"),
        dcc.Store(id="picture"),
        dcc.Download(id="download"),
        dcc.Download(id="rows"),
        dcc.Interval(id="tick", interval=400, disabled=True),
    ]
    return html.Div([
        dcc.Location(id="url", refresh=False), *kept, html.Header(id="head"),
        html.Main([html.Div(id="fields", role="form", **parts.aria(label="what is asked")), html.Div(id="said", role="status"),
                   html.Div(id="content", **parts.aria(live="polite"))]),
    ])  # fmt: skip


def _navigation(view: View, explorer: Explorer, question: Question) -> list[Part]:
    """Links to the views, which keep what they have in common with this one."""
    common = {name: question[name] for name in ("subject", "operator", "layer", "neuron", "prompt") if name in question}
    places = {other.path: f"/{other.path}{Question(common).search()}" for other in VIEWS.values()}
    links = [
        html.A(VIEWS[path].title, href=href, **parts.aria(current="page")) if path == view.path else dcc.Link(VIEWS[path].title, href=href)
        for path, href in places.items()
    ]
    return [html.Strong("bag explore"), html.Nav(links, **parts.aria(label="views"))]


def _saved(picture: dict[str, str] | None) -> tuple:
    if not picture:
        return no_update, no_update
    try:
        content = saved(picture["data"], picture["format"], picture["query"], picture["page"])
    except (ExplorerError, KeyError) as error:
        return no_update, parts.alert(str(error))
    name = f"{picture['name']}.{picture['format']}"
    return {"content": base64.b64encode(content).decode(), "base64": True, "filename": name}, f"Saved {name}, with its SQL in it."


def _guard(server: flask.Flask) -> None:
    """Refuses whoever is not a page of ours, and keeps our pages from asking anybody else."""

    @server.before_request
    def refuse() -> tuple[str, int] | None:
        origin = flask.request.headers.get("Origin")
        try:
            host = urlsplit(f"//{flask.request.host}").hostname
            from_elsewhere = origin and urlsplit(origin).netloc != flask.request.host
            foreign = f"{host}" not in OWN | {"::1"} or from_elsewhere
        except ValueError:  # one of them is not an address
            foreign = True
        message = "bag explore answers this machine's own browser alone, at http://localhost"
        return (message, 403) if foreign else None

    @server.errorhandler(Exception)
    def explain(error: Exception) -> Any:
        """Answer a request that failed with status 400: requests of our own pages do not fail."""
        if isinstance(error, HTTPException):
            return error
        logging.getLogger(__name__).error("a request could not be answered", exc_info=error)
        return f"this is no request of a page of bag explore: {type(error).__name__}", 400

    @server.after_request
    def restrict(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response
