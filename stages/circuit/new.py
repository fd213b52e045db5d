"""Begin an experiment of your own: write its two queries and the entries of its three stages.

    bag new experiment mine
    bag new experiment mine --chapter neurons

The folder experiment/ has what is written. It runs as it is; then edit the queries.
"""

import argparse
import os
import re
from pathlib import Path

import yaml

from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, read
from stages.lib.dictionary import tables
from stages.lib.entries import inserted

TEMPLATES = Path(__file__).with_name("experiment")
# chapters whose stages run for all subjects and may read circuit/pairs
HOSTS = ("circuit", "neurons", "heuristics", "bag", "mediation", "theories")
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
QUERIES = {"interventions": "what is patched by what", "effects": "what is measured"}
STAGES = ("interventions", "runs", "effects")


class NewError(ValueError):
    """An experiment that cannot be written: the value, what is allowed, and the fix."""


def parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").partition("\n")[0]
    result = argparse.ArgumentParser(prog="bag new", description=summary)
    result.add_argument("kind", choices=["experiment"], help="what to begin")
    result.add_argument("name", help="its name: small letters, digits and underscores")
    result.add_argument(
        "--chapter",
        default="circuit",
        choices=HOSTS,
        help=f"folder of stages/ that gets it: {', '.join(HOSTS)} (default: circuit)",
    )
    return result


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    try:
        print("\n".join(written(options.name, options.chapter)))
    except (NewError, ParamsError, OSError) as error:
        raise SystemExit(f"bag new: {error}; nothing was written") from None


def written(name: str, chapter: str) -> list[str]:
    """Write an experiment, and return lines about what was written and what to do next.

    Raises NewError or ParamsError, before anything is written, if the name cannot be used.
    """
    folder = Path("stages") / chapter
    entries = folder / "dvc.yaml"
    if not entries.is_file():
        raise NewError(f"{Path.cwd()} has no {entries}; run bag new in the project's root")
    _check_name(name)
    files = {}
    for query in QUERIES:
        files[folder / f"{name}_{query}.sql"] = _filled(f"{query}.sql", name, chapter)
    added = _filled("stages.yaml", name, chapter).rstrip().split("\n")
    files[entries] = inserted(entries, {"stages": added})
    for file in (folder, entries):
        if not os.access(file, os.W_OK):
            raise NewError(f"{file} is not writable; change its permissions")
    for file, text in files.items():
        with replacing(file) as partial:
            partial.write_text(text, encoding="utf-8")
    line = files[entries].split("\n").index(added[0]) + 1
    return _next_steps(name, chapter, range(line, line + len(added)))


def _check_name(name: str) -> None:
    """Raise NewError if an experiment cannot have this name."""
    if not NAME.fullmatch(name):
        raise NewError(
            f"{name!r} is not a name; give a small letter, then at most 39 small letters, digits "
            "and underscores, such as last_mlp"
        )
    taken = {*tables(), *(file.stem for file in Path("stages").glob("*/*.sql"))}
    for file in Path("stages").glob("*/dvc.yaml"):
        taken.update(yaml.safe_load(file.read_text(encoding="utf-8"))["stages"])
    for stage in STAGES:
        if f"{name}_{stage}" in taken:
            problem = f"{name!r} is taken: there is a table or stage {name}_{stage}"
            raise NewError(f"{problem}; choose another name")


def _filled(template: str, name: str, chapter: str) -> str:
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return text.replace("NAME", name).replace("CHAPTER", chapter)


def _next_steps(name: str, chapter: str, lines: range) -> list[str]:
    folder = f"stages/{chapter}"
    steps = []
    for query, meaning in QUERIES.items():
        steps.append(f"wrote {folder}/{name}_{query}.sql: {meaning}; edit it")
    stages = ", ".join(f"{name}_{stage}" for stage in STAGES)
    return [
        *steps,
        f"added {stages} to {folder}/dvc.yaml, lines {lines[0]} to {lines[-1]}; list there, "
        "under deps, each table that your queries read",
        f"run it: dvc repro {folder}/dvc.yaml:{name}_effects@{read()['default']}",
        f'see it: bag "from {name}_effects"; its columns: bag tables {name}_effects',
    ]


if __name__ == "__main__":
    main()
