"""`bag export QUERY FOLDER`: write a query's rows as a dataset of Hugging Face."""

import argparse
from pathlib import Path

from stages.bridges.dataset import ROWS, DatasetError, to_dataset
from stages.lib.console.common import add_data, add_parameters
from stages.lib.console.values import parameters
from stages.lib.sql.database import ERRORS, connect, sentence


def main(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    try:
        with connect(options.data) as bag:
            query = _text(options.query)
            values = parameters(options.parameter)
            folder = to_dataset(bag, query, options.folder, values, options.rows)
    except (*ERRORS, DatasetError, OSError) as error:
        raise SystemExit(f"bag export: {sentence(error)}") from None
    print(f"{folder} is written; datasets.load_dataset({str(folder)!r}) reads it.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bag export",
        description="Write a query's rows as Parquet files with a dataset card.",
        epilog="example: bag export \"from labels where subject = 'abacus'\" labels",
    )
    parser.add_argument("query", help="a SELECT, or a .sql file")
    parser.add_argument("folder", type=Path, help="folder to write, absent or empty")
    add_parameters(parser)
    add_data(parser)
    parser.add_argument(
        "--rows",
        type=_count,
        default=ROWS,
        help=f"rows of a file at most (default: {ROWS})",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 or more")
    return int(text)


def _text(query: str) -> str:
    return Path(query).read_text(encoding="utf-8") if query.endswith(".sql") else query
