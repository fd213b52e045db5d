"""What views say, without a page around them."""

import json

from stages.explorer.app import answered
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS
from stages.explorer.parts import Field
from stages.explorer.question import Question


def words(part: object) -> str:
    """Everything that a part of the page says."""
    return json.dumps(part, default=lambda one: one.to_plotly_json())


def says(explorer: Explorer, path: str, **fields: object) -> str:
    _, content = answered(explorer, VIEWS[path], Question(fields))
    return words(content())


def field(explorer: Explorer, path: str, name: str, **fields: object) -> Field:
    """One of a view's fields."""
    [found] = [one for one in answered(explorer, VIEWS[path], Question(fields))[0] if one.name == name]
    return found
