"""Read what views show, without a page around them."""

import json
from typing import Any

from stages.explorer.app import answered
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS
from stages.explorer.parts import Field
from stages.explorer.question import Question


def words(part: object) -> str:
    """Return everything in a part of a page, as JSON."""

    def plain(component: Any) -> dict:
        return component.to_plotly_json()

    return json.dumps(part, default=plain)


def says(explorer: Explorer, path: str, **fields: object) -> str:
    """Return the content of a view for some fields."""
    _, content = answered(explorer, VIEWS[path], Question(fields))
    return words(content())


def field(explorer: Explorer, path: str, name: str, **fields: object) -> Field:
    """Return a field of a view."""
    listed, _ = answered(explorer, VIEWS[path], Question(fields))
    return {field.name: field for field in listed}[name]
