"""How params.yaml is read: sections are frozen models, checked when loaded.

An unknown or missing key, a wrong type or a value out of range raises ParamsError, which names the key, the value and
what is allowed. A section's class is named after it: `load(LateLayers)` is the section `late_layers`.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Percent = Annotated[int, Field(ge=0, le=50)]
Seed = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=256)]

FILE = Path("params.yaml")
Checked = TypeVar("Checked")


class ParamsError(SystemExit):
    """A setting in params.yaml that is not allowed; uncaught, it ends the program with its message and status 1."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


LoadedSection = TypeVar("LoadedSection", bound=Section)


def load(section: type[LoadedSection]) -> LoadedSection:
    """The checked section of params.yaml that this class describes."""
    name = key_of(section.__name__)
    raw = read()
    if name not in raw:
        raise ParamsError(f"{FILE} lacks the section {name}")
    return check(section, raw[name], name)


def key_of(name: str) -> str:
    """The key in params.yaml of the section that a class of this name describes."""
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def read() -> dict[str, Any]:
    """params.yaml as it stands, unchecked."""
    return yaml.safe_load(FILE.read_text())


def check(kind: type[Checked], raw: Any, name: str = "") -> Checked:
    """`raw` as a checked value of this kind; `name` is where in params.yaml it stands. Raises ParamsError."""
    try:
        # JSON, because pydantic's strict mode takes nested models from JSON but not from Python dicts.
        return TypeAdapter(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        lines = [_line(kind, name, e) for e in error.errors()]
        raise ParamsError(f"{FILE} holds what is not allowed:\n" + "\n".join(lines)) from None


def _line(kind: Any, name: str, error: Any) -> str:
    """One line of the message: the key, its value, and what is allowed there."""
    key = ".".join(str(part) for part in (name, *error["loc"]) if part != "")
    if error["type"] == "missing":
        return f"  {key} is missing"
    if error["type"] == "extra_forbidden":
        return f"  {key} = {error['input']!r}: no such key; there are {', '.join(_keys(kind, error['loc'][:-1]))}"
    return f"  {key} = {error['input']!r}: {error['msg']}"


def _keys(kind: Any, place: tuple) -> list[str]:
    """The keys that are allowed at a place within a kind, from its JSON schema."""
    schema = whole = TypeAdapter(kind).json_schema()
    for part in (None, *place):
        if part is not None:
            schema = (
                schema.get("properties", {}).get(part)
                or schema.get("additionalProperties")
                or next(iter(schema.get("patternProperties", {}).values()), {})
            )
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return sorted(schema.get("properties", {}))
