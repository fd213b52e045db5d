"""The options of `bag check` and `bag add`, which import no library until they are complete."""

import argparse
from pathlib import Path

from stages.lib.core.vocabulary import OPERATORS

TEMPLATE = "{op1}{symbol}{op2}="
DESCRIPTIONS = {
    "check": "Describe a model and how its tokenizer reads the prompts, and estimate the time, the "
    "memory and the disk space of every stage on this machine. Writes nothing.",
    "add": "Describe a model as `bag check` does. If there is no problem, add its entry to "
    "params.yaml, with numbers of pairs and neurons for which all stages take at most the budget. "
    "Runs no stage.",
}
IN_ENTRY = [
    "template", "dtype", "bos", "layers", "operators", "answer_token", "largest_operand", "chat",
]  # fmt: skip


def parser(command: str) -> argparse.ArgumentParser:
    """Return the options of `bag check` and `bag add`; `add` also takes a name."""
    result = argparse.ArgumentParser(prog=f"bag {command}", description=DESCRIPTIONS[command])
    if command == "add":
        result.add_argument("name", help="the model's name: small letters, digits and hyphens")
    result.add_argument(
        "source",
        help="folder of a model, with config.json, *.safetensors and its tokenizer; a GGUF file; "
        "or org/name@commit on the Hub",
    )
    result.add_argument(
        "--template",
        default=TEMPLATE,
        help=f"text of a prompt (default: {TEMPLATE})",
    )
    result.add_argument(
        "--dtype",
        choices=["float64", "float32", "float16", "bfloat16"],
        help="data type of the computation (default: float64 for small models, else bfloat16)",
    )
    result.add_argument(
        "--store-only",
        action="store_true",
        help="compute the chapter store alone: activations, predictions, accuracies",
    )
    result.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        help="whether BOS precedes each prompt (default: as the tokenizer itself does)",
    )
    result.add_argument(
        "--chat",
        action="store_true",
        help="put each prompt into the tokenizer's chat template as a user's message",
    )
    result.add_argument(
        "--answer-token",
        type=int,
        help="which of the answer's tokens the model predicts, from 0, if numbers have several",
    )
    result.add_argument(
        "--largest-operand",
        type=int,
        help="the largest operand in prompts (default: cells.largest_operand)",
    )
    result.add_argument(
        "--budget",
        help="hours and minutes that all stages may take on this machine, such as 24h or 1h30m "
        "(default: 5h if sizes allow it)",
    )
    result.add_argument(
        "--entry",
        type=Path,
        help="YAML file with keys of the model's entry, its sizes and entries of digits, such as "
        "examples/qwen/second.yaml",
    )
    result.add_argument(
        "--measure",
        action="store_true",
        help="load the model, whatever its size, and time its forward passes for 3 s",
    )
    result.set_defaults(layers="all", operators=[*OPERATORS], sizes=None, digits={})
    return result


def parsed(command: str, arguments: list[str]) -> argparse.Namespace:
    """Return the options; those that arguments leave out come from --entry's file.

    Raises ParamsError if that file is not an entry.
    """
    options = parser(command)
    file = options.parse_args(arguments).entry
    if file is None:
        return options.parse_args(arguments)
    # only here: pydantic and Polars are slow to import, and help needs neither
    from stages.lib.core.settings import ParamsError, check, sections_of
    from stages.lib.settings import Digits
    from stages.lib.subject import Name, Sizes

    if not file.is_file():
        raise ParamsError(f"no file {file} for --entry; correct the path")
    entry = dict(sections_of(file, file.read_text(encoding="utf-8")))
    sizes = check(Sizes, entry.pop("sizes", {}), "sizes")
    has_sizes = sizes != Sizes()
    digits = entry.pop("digits", {})
    check(dict[Name, Digits], digits, "digits")
    unknown = sorted(entry.keys() - set(IN_ENTRY))
    if unknown:
        known = ", ".join(sorted(IN_ENTRY))
        allowed = f"an entry's keys are {known}, digits and sizes"
        raise ParamsError(f"{file} names {unknown[0]!r}; {allowed}")
    options.set_defaults(**entry, sizes=sizes if has_sizes else None, digits=digits)
    result = options.parse_args(arguments)
    if result.budget and has_sizes:
        raise ParamsError(f"{file} has sizes, which --budget would choose; leave one of them out")
    return result
