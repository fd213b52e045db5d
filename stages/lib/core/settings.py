"""How settings are read, those of params.yaml and of each stages/<chapter>/params.yaml: sections are frozen models, checked when loaded.

An unknown or missing key, a wrong type or a value out of range raises ParamsError, which names the key, the value and
what is allowed. A section's class is named after it: `load(LateLayers)` is the section `late_layers`.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

Count = Annotated[int, Field(ge=1, le=10**9)]
Few = Annotated[int, Field(ge=1, le=100_000)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=10**9)]
NonNegative = Annotated[float, Field(ge=0, le=10**9)]
Percent = Annotated[int, Field(ge=1, le=50)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Threads = Annotated[int, Field(ge=1, le=256)]

LONGEST = 300  # characters of a value that a message repeats
MAY_REPEAT = ("betas", "shots")
Checked = TypeVar("Checked")


class ParamsError(SystemExit):
    """A setting that is not allowed; uncaught, it ends the program with its message and status 1."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


LoadedSection = TypeVar("LoadedSection", bound=Section)


def load(section: type[LoadedSection]) -> LoadedSection:
    """The checked section that this class describes, in whichever file it stands."""
    name = key_of(section.__name__)
    raw = read()
    if name not in raw:
        raise ParamsError(f"neither params.yaml nor a chapter's params.yaml has the section {name}")
    return check(section, raw[name], name)


def key_of(name: str) -> str:
    """The key of the section that a class of this name describes."""
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def files(root: Path = Path()) -> list[Path]:
    """params.yaml, and those of the chapters."""
    return [root / "params.yaml", *sorted(root.glob("stages/*/params.yaml"))]


def read() -> dict[str, Any]:
    """Every section of all files, unchecked. Raises ParamsError on one that stands in two, and where a file is not YAML."""
    whole: dict[str, Any] = {}
    for file in files():
        sections = sections_of(file, file.read_text(encoding="utf-8"))
        if both := sorted(whole.keys() & sections.keys()):
            raise ParamsError(
                f"{file}: the section {both[0]} stands in another params.yaml as well; a setting has one place"
            )
        whole |= sections
    return whole


@cache
def sections_of(file: Path, text: str) -> dict[str, Any]:
    """Return a YAML file's keys and values as DVC reads it, by YAML 1.2: 010 is ten, and no key stands twice."""
    try:
        sections = YAML(typ="safe").load(text) or {}
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ParamsError(f"{file}{line}: {error.problem}") from None
    if not isinstance(sections, dict):
        raise ParamsError(
            f"{file} holds {type(sections).__name__} instead of sections, such as `runs:` and its keys below it"
        )
    return sections


def repeated(raw: Any, at: str = "") -> str | None:
    """The first value that stands twice in some list of settings, as `key = value`; lists of measures, such as shares, may repeat one."""
    if isinstance(raw, dict):
        return next(
            (
                found
                for key, value in raw.items()
                if (found := repeated(value, f"{at}.{key}" if at else str(key)))
            ),
            None,
        )
    if not isinstance(raw, list) or at.rpartition(".")[2] in MAY_REPEAT:
        return None
    twice = next((value for number, value in enumerate(raw) if value in raw[:number]), None)
    return None if twice is None else f"{at} = {twice!r}"


def _no_json(raw: Any, at: str) -> str | None:
    """The first key whose value is no text, number, list or section, such as a date, and what it is."""
    if isinstance(raw, dict | list):
        items = raw.items() if isinstance(raw, dict) else enumerate(raw)
        return next(
            (
                found
                for key, value in items
                if (found := _no_json(value, f"{at}.{key}" if at else str(key)))
            ),
            None,
        )
    if raw is None or isinstance(raw, str | int | float):
        return None
    return f"{at} = {raw}: YAML reads this as a {type(raw).__name__}; put it in quotes"


def place(section: str) -> Path:
    """Return the file that has a section; params.yaml if no file has it."""
    heading = re.compile(rf"^{re.escape(section)}:", re.MULTILINE)
    holding = (file for file in files() if heading.search(file.read_text(encoding="utf-8")))
    return next(holding, Path("params.yaml"))


def check(kind: type[Checked], raw: Any, name: str = "") -> Checked:
    """`raw` as a checked value of this kind; `name` is the key under which it stands. Raises ParamsError."""
    if other := _no_json(raw, name):
        raise ParamsError(
            f"{place(name.partition('.')[0] or other.partition('.')[0])} holds what is not allowed:\n  {other}"
        )
    try:
        # JSON, because pydantic's strict mode takes nested models from JSON but not from Python dicts.
        return TypeAdapter(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        lines = [_line(kind, name, e) for e in _once(error.errors())]
        first = next(
            (str(part) for part in (name.partition(".")[0], *error.errors()[0]["loc"]) if part), ""
        )
        raise ParamsError(
            f"{place(first)} holds what is not allowed:\n" + "\n".join(lines)
        ) from None


def _once(errors: list[Any]) -> list[Any]:
    """Each error once: a model's entry stands in several sections, which YAML's anchors fill."""
    first = {
        (error["loc"][1:] if len(error["loc"]) > 2 else error["loc"], error["msg"]): error
        for error in reversed(errors)
    }
    return list(reversed(first.values()))


def _line(kind: Any, name: str, error: Any) -> str:
    """One line of the message: the key, its value, and what is allowed there."""
    key = ".".join(str(part) for part in (name, *error["loc"]) if part != "")
    if error["type"] == "missing":
        return f"  {key} is missing"
    if error["type"] == "extra_forbidden":
        return f"  {key} = {error['input']!r}: no such key; there are {', '.join(_keys(kind, error['loc'][:-1]))}"
    value = "" if isinstance(error["input"], dict) else f" = {error['input']!r}"
    return f"  {key}{value if len(value) < LONGEST else ''}{': ' if key else ''}{error['msg']}"


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
