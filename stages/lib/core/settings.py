"""Load and check the settings in params.yaml and in each stages/<chapter>/params.yaml.

Each section is a frozen model, checked when loaded. An unknown or missing key, a wrong type or a
value out of range raises ParamsError, which names the key, the value and what is allowed. A
section's class has its name: `load(LateLayers)` loads the section `late_layers`.
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
    """A setting that is not allowed. If not caught, it ends the program with status 1."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


LoadedSection = TypeVar("LoadedSection", bound=Section)


def load(section: type[LoadedSection]) -> LoadedSection:
    """Return the checked section that a class describes. Raises ParamsError if there is none."""
    name = key_of(section.__name__)
    raw = read()
    if name not in raw:
        raise ParamsError(f"neither params.yaml nor a chapter's params.yaml has the section {name}")
    return check(section, raw[name], name)


def key_of(name: str) -> str:
    """Return the key of the section that a class describes: late_layers for LateLayers."""
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def files(root: Path = Path()) -> list[Path]:
    """Return params.yaml and those of the chapters."""
    return [root / "params.yaml", *sorted(root.glob("stages/*/params.yaml"))]


def read() -> dict[str, Any]:
    """Return every section of all files, unchecked.

    Raises ParamsError if two files have the same section, or if a file is not YAML.
    """
    whole: dict[str, Any] = {}
    for file in files():
        sections = sections_of(file, file.read_text(encoding="utf-8"))
        both = sorted(whole.keys() & sections.keys())
        if both:
            problem = f"{file}: another params.yaml has the section {both[0]} as well"
            raise ParamsError(f"{problem}; remove one of the two")
        whole |= sections
    return whole


@cache
def sections_of(file: Path, text: str) -> dict[str, Any]:
    """Return the content of a YAML file as DVC reads it, by YAML 1.2: 010 is ten, keys are unique.

    Raises ParamsError if it is not YAML, or not a mapping.
    """
    try:
        sections = YAML(typ="safe").load(text) or {}
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ParamsError(f"{file}{line}: {error.problem}") from None
    if not isinstance(sections, dict):
        problem = f"{file} holds {type(sections).__name__} instead of sections"
        raise ParamsError(f"{problem}, such as `runs:` and its keys below it")
    return sections


def repeated(raw: Any, at: str = "") -> str | None:
    """Return the first value that is twice in a list of settings, as `key = value`.

    The lists in MAY_REPEAT may repeat values. at: the key of `raw`.
    """
    if isinstance(raw, dict):
        problems = (repeated(value, _below(at, key)) for key, value in raw.items())
        return next(filter(None, problems), None)
    if isinstance(raw, list) and at.rpartition(".")[2] not in MAY_REPEAT:
        for number, value in enumerate(raw):
            if value in raw[:number]:
                return f"{at} = {value!r}"
    return None


def _below(at: str, key: object) -> str:
    return f"{at}.{key}" if at else str(key)


def _not_json(raw: Any, at: str) -> str | None:
    """Return the first key whose value JSON cannot hold, such as a date, and the fix."""
    if isinstance(raw, list):
        raw = dict(enumerate(raw))
    if isinstance(raw, dict):
        problems = (_not_json(value, _below(at, key)) for key, value in raw.items())
        return next(filter(None, problems), None)
    if raw is None or isinstance(raw, str | int | float):
        return None
    return f"{at} = {raw}: YAML reads this as a {type(raw).__name__}; put it in quotes"


def place(section: str) -> Path:
    """Return the file that has a section; params.yaml if no file has it."""
    heading = re.compile(rf"^{re.escape(section)}:", re.MULTILINE)
    holding = (file for file in files() if heading.search(file.read_text(encoding="utf-8")))
    return next(holding, Path("params.yaml"))


def check(kind: type[Checked], raw: Any, name: str = "") -> Checked:
    """Return `raw` as a checked value of this kind. name: its key.

    Raises ParamsError with a line for each problem.
    """
    problem = _not_json(raw, name)
    if problem:
        raise _error(name or problem, ["  " + problem])
    try:
        # from JSON, since pydantic's strict mode does not take nested models from Python dicts
        return TypeAdapter(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        errors = _once(error.errors())
        first = next(filter(None, (name, *error.errors()[0]["loc"])), "")
        raise _error(str(first), [_line(kind, name, each) for each in errors]) from None


def _error(key: str, lines: list[str]) -> ParamsError:
    """Return the error for a key with problems."""
    file = place(key.partition(".")[0])
    return ParamsError("\n".join([f"{file} holds what is not allowed:", *lines]))


def _once(errors: list[Any]) -> list[Any]:
    """Return each error once. YAML's anchors put the entry of a model into several sections."""
    first: dict[tuple, Any] = {}
    for error in errors:
        path = error["loc"]
        if len(path) > 2:
            path = path[1:]
        first.setdefault((path, error["msg"]), error)
    return list(first.values())


def _line(kind: Any, name: str, error: Any) -> str:
    """Return a line of the message: the key, its value, and what is allowed."""
    key = ".".join(str(part) for part in (name, *error["loc"]) if part != "")
    if error["type"] == "missing":
        return f"  {key} is missing"
    value = f" = {error['input']!r}"
    if error["type"] == "extra_forbidden":
        known = ", ".join(_keys(kind, error["loc"][:-1]))
        return f"  {key}{value}: no such key; available keys: {known}"
    if isinstance(error["input"], dict) or len(value) >= LONGEST:
        value = ""
    problem = f"{key}{value}: {error['msg']}"
    return "  " + problem.removeprefix(": ")


def _keys(kind: Any, place: tuple) -> list[str]:
    """Return the keys that are allowed at a place within a kind, from its JSON schema."""
    whole = TypeAdapter(kind).json_schema()
    schema = _resolved(whole, whole)
    for part in place:
        patterns = schema.get("patternProperties", {}).values()
        inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        schema = _resolved(inner or next(iter(patterns), {}), whole)
    return sorted(schema.get("properties", {}))


def _resolved(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a JSON schema refers to, or the schema itself."""
    if "$ref" not in schema:
        return schema
    return whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
