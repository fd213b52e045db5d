"""Find the command that arguments name, and run it. `bag --help` lists all commands.

A command of the console is a module of this folder with `add_arguments(parser)` and `run(options)`.
Chapters register further commands in pyproject.toml, each a function `main(arguments)`. The first
line of a command's docstring, "`bag NAME`: what it does.", is its line in `bag --help`.
"""

import argparse
import ast
import os
import re
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[3]  # the folder of `stages`
COMMANDS = ("query", "tables", "status", "plot", "shell", "verify", "completion")
RENAMED_COMMANDS = {"made": "status"}
# commands that go on after Ctrl-C, or whose library starts processes
OWN_SIGNALS = ("shell", "verify")
# options before a command or query that are followed by a value
VALUED = ("-p", "--parameter", "--data", "--rows")
USAGE = 'bag COMMAND …\n       bag "select …"'
EXAMPLES = """\
`bag COMMAND --help` explains a command. A query needs no command, and has the options of `query`.

examples:
  bag "select * from accuracy"      bag query.sql -p layer=1      bag tables --search accuracy
  bag plot "select layer, accuracy from probes" -o probes.png      bag check models/mine"""


@cache
def registered() -> dict[str, EntryPoint]:
    """Return the commands that chapters register, by name."""
    return {entry.name: entry for entry in entry_points(group="bag.commands")}


def named(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the command that arguments name, and the arguments without its name.

    Options may precede the name. A query names no command and is run by `query`. The name is
    empty if there is neither. Ends the program if a word is neither a command nor a query.
    """
    for index in _words(arguments):
        word, rest = arguments[index], [*arguments[:index], *arguments[index + 1 :]]
        if word in COMMANDS or word in registered():
            return word, rest
        if word in RENAMED_COMMANDS:
            sys.exit(f"bag: the command {word} is now {RENAMED_COMMANDS[word]}")
        if re.fullmatch(r"\w+", word):
            sys.exit(f"bag: {_unknown(word)}")
        return "query", arguments
    return "", arguments


def _words(arguments: list[str]) -> list[int]:
    """Return the place of the first argument that is neither an option nor an option's value.

    The result is a list of at most one place.
    """
    is_value = False
    for index, argument in enumerate(arguments):
        # an option has no blank; a query may begin with a comment, `-- …`
        is_option = re.match(r"--?[^\s=]+(=|$)", argument)
        if not is_value and not is_option:
            return [index]
        is_value = not is_value and argument in VALUED
    return []


def _unknown(word: str) -> str:
    commands = [*COMMANDS, *registered()]
    similar = "".join(f" Did you mean {name}?" for name in get_close_matches(word, commands, n=1))
    problem = f"unknown command {word!r}; available commands: {', '.join(commands)}.{similar}"
    return f'{problem} For the rows of a table: "from {word}".'


def parser(
    finish: Callable[[argparse.ArgumentParser, str], None] | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of `bag --help`, with a line for each command.

    finish: called with the parser and the name of each command, without arguments until then.
    """
    result = argparse.ArgumentParser(
        prog="bag",
        usage=USAGE,
        description="Ask any question of any neuron, in SQL.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shown = f"bag {version('bag')}"
    result.add_argument("--version", action="version", version=shown, help="print the version")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", prog="bag", required=True)
    modules = {name: f"{__package__}.{name}" for name in COMMANDS}
    modules |= {name: entry.module for name, entry in registered().items()}
    for name, source in modules.items():
        added = commands.add_parser(name, help=summary(source))
        if finish:
            finish(added, name)
    return result


def module(name: str) -> ModuleType:
    """Import the module of one of the console's own commands."""
    return import_module(f"{__package__}.{name}")


def summary(name: str) -> str:
    """Return a command's line in the help, from its module, which is not imported."""
    file = PROJECT / f"{name.replace('.', '/')}.py"
    if not file.exists():  # registered by another version of this project
        return ""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = docstring.partition("\n")[0].rpartition("`: ")[2].rstrip(".")
    return line[:1].lower() + line[1:]


def main(arguments: list[str]) -> None:
    run(*named(arguments))


def run(name: str, arguments: list[str]) -> None:
    """Run a command. An error ends the program with a message."""
    if not name:
        asks = [argument for argument in arguments if argument in ("-h", "--version")]
        parser().parse_args(asks or ["--help"])
    elif name in registered():
        registered()[name].load()(arguments)
    else:
        _run_own(name, arguments)


def _run_own(name: str, arguments: list[str]) -> None:
    command = module(name)
    description = (command.__doc__ or "").partition("`: ")[2]
    options = argparse.ArgumentParser(
        prog=f"bag {name}",
        description=description[:1].upper() + description[1:],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(options)
    parsed = options.parse_args(arguments)
    if name != "shell":
        # Ctrl-C ends bag at once, even within a query; see bag.py. Libraries that
        # the command imports handle it otherwise
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        command.run(parsed)
        sys.stdout.flush()  # a full disk raises now, and not at exit
    except Exception as error:
        # only here: DuckDB and Polars take a second to import, and the names of tables need neither
        from stages.lib.console.common import ANY, sentence

        if not isinstance(error, (*ANY, OSError)):
            raise
        _drop_output()
        raise SystemExit(f"bag: {sentence(error)}") from None


def _drop_output() -> None:
    """Drop buffered output that cannot be written; else the interpreter would try again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 open until exit
