"""`bag export QUERY FOLDER`: write a query's rows as a dataset of Hugging Face."""

import argparse
from pathlib import Path

from stages.bridges.dataset import ROWS, DatasetError, to_dataset
from stages.lib.console.common import add_data, add_parameters
from stages.lib.console.query import opened_query
from stages.lib.sql.database import ERRORS, sentence


def main(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    try:
        query = opened_query(options.query, options.parameter, options.data)
        with query.database as bag:
            folder = to_dataset(bag, query.text, options.folder, query.values, options.rows)
    except (*ERRORS, DatasetError, OSError) as error:
        if "KeyboardInterrupt" in str(error):  # Ctrl-C has reached Python within a scan
            raise KeyboardInterrupt from None
        raise SystemExit(f"bag export: {sentence(error)}") from None
    print(f"Wrote {folder}; datasets.load_dataset({str(folder)!r}) reads it.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bag export",
        description="Write a query's rows as Parquet files with a dataset card.",
        epilog="example: bag export \"from labels where subject = 'abacus'\" labels",
    )
    parser.add_argument("query", help='a SELECT in quotes, a .sql file, or "-" for standard input')
    parser.add_argument("folder", type=Path, help="folder to write, absent or empty")
    add_parameters(parser)
    add_data(parser)
    parser.add_argument(
        "--rows",
        type=_count,
        default=ROWS,
        help=f"maximum number of rows per Parquet file (default: {ROWS})",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 or more")
    return int(text)
