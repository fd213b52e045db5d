"""`bag completion SHELL`: print a script that completes commands, options and tables.

For bash: bag completion bash > ~/.local/share/bash-completion/completions/bag
For zsh: bag completion zsh > FOLDER/_bag, with a FOLDER of $fpath
The script asks `bag completion tables` for the names of tables.
"""

import argparse

import shtab

from stages.lib import dictionary
from stages.lib.console import command

# how a shell completes an argument, by its name in the parser
COMPLETED = {
    "tables": shtab.cmd("bag completion tables 2>/dev/null"),
    "query": shtab.glob("*.sql"),
    "data": shtab.DIRECTORY,
    "output": shtab.FILE,
    "arguments": shtab.FILE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    meaning = "bash or zsh; tables: print the names of all tables that a stage makes"
    parser.add_argument("shell", choices=["bash", "zsh", "tables"], help=meaning)


def run(options: argparse.Namespace) -> None:
    if options.shell == "tables":
        print("\n".join(dictionary.tables()))
    else:
        print(shtab.complete(command.parser(finish=_finish), options.shell))


def _finish(parser: argparse.ArgumentParser, name: str) -> None:
    """Add a command's arguments to its parser, each with what completes it.

    Commands of chapters take files: importing them takes seconds.
    """
    if name in command.COMMANDS:
        command.module(name).add_arguments(parser)
    else:
        parser.add_argument("arguments", nargs="*")
    for action in parser._actions:
        if action.dest in COMPLETED:
            action.complete = COMPLETED[action.dest]  # type: ignore[attr-defined]
