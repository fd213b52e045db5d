"""`bag plot "select x, y[, series] …"`: draw a query's rows into a file.

The columns' types choose the picture, or --kind does:
  line     x and y are numbers, y is a function of x (of each series), x is whole or ordered
  scatter  x and y are other numbers, or x is a text that occurs several times
  bar      x is a text, y a number
  map      x and y are whole numbers or texts, each pair occurs once, the third column is a number;
           two operands make a neuron map, op1 down and op2 across
"""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import polars as pl

from stages.lib import dictionary
from stages.lib.console.command import PROJECT
from stages.lib.console.query import add_query, read
from stages.lib.console.tables import first_sentence
from stages.lib.core.files import replacing
from stages.lib.drawing import drawing, heat
from stages.lib.drawing.drawing import Axes, Figure
from stages.lib.sql.database import QueryError

# of formats: metadata that would make the bytes depend on the date
DATES: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
COLOURS = (
    drawing.BLUE,
    drawing.VERMILION,
    drawing.GREEN,
    drawing.PINK,
    drawing.ORANGE,
    drawing.SKY,
    drawing.WINE,
    drawing.GREY,
)
OPERANDS = {"op1", "op2"}
MOST_ROWS = 1_000_000
MOST_BARS = 100
MOST_TEXTS = 300  # rows or columns of a heat map with names
POINTS = 10_000  # points from which SVG and PDF hold pixels
WIDTH, HEIGHT = 4.6, 3.0  # inches
LETTERS = 14  # letters of a label in an inch
NUMBERED = 40  # rows or columns from which whole numbers are an axis, rather than names
Draw = Callable[[pl.DataFrame, dict[str, str]], Figure]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_query(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=_file,
        default=Path("plot.png"),
        metavar="FILE",
        help="the picture: a .png, .svg or .pdf file (default: plot.png)",
    )
    meaning = "kind of picture (default: the columns' types choose it)"
    parser.add_argument("--kind", choices=list(KINDS), help=meaning)


def _file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in DATES:
        known = ", ".join(DATES)
        raise argparse.ArgumentTypeError(
            f"{text!r} does not end in {known}; choose one of these, such as plot.png"
        )
    return path


def run(options: argparse.Namespace) -> None:
    query = read(options)
    frame = rows(query.database.sql(query.text, **query.values))
    kind = options.kind or kind_of(frame)
    figure = KINDS[kind](frame, labels(query.text, frame.columns))
    save(figure, options.output)
    print(f"{options.output}: {kind} of {frame.height:,} rows")


def rows(relation: Any) -> pl.DataFrame:
    """Return two or three columns of a query: numbers, whole or not, and texts. Nulls are left out.

    Raises QueryError if the query has other columns, no rows or too many.
    """
    names = relation.columns
    if len(names) not in (2, 3) or len({*names}) < len(names):
        problem = f"a plot takes two or three columns, x, y and perhaps a series, not {len(names)}"
        raise QueryError(f"{problem} ({', '.join(names)}); name them in the query")
    frame = relation.limit(MOST_ROWS + 1).pl()
    if frame.height > MOST_ROWS:
        raise QueryError(f"the query has more than {MOST_ROWS:,} rows; group them, or add a limit")
    frame = frame.select(_simple(column) for column in frame).drop_nulls()
    if frame.is_empty():
        raise QueryError("the query has no rows without nulls; nothing was drawn")
    return frame


def _simple(column: pl.Series) -> pl.Series:
    """Return a column as whole numbers, as numbers with NaN and infinity as null, or as texts."""
    kind = column.dtype
    if kind.is_integer() or (isinstance(kind, pl.Decimal) and kind.scale == 0):
        return column.cast(pl.Int64)
    if kind.is_numeric():
        numbers = column.cast(pl.Float64)
        return numbers.set(~numbers.is_finite().fill_null(value=True), None)
    if kind.is_nested() or kind == pl.Binary:
        problem = f"the column {column.name} is of type {kind}, and a plot takes numbers and texts"
        raise QueryError(f"{problem}; select one of its parts")
    return column.cast(pl.String)


def kind_of(frame: pl.DataFrame) -> str:
    """Return the kind of picture for these columns."""
    x, third = frame.columns[0], frame.columns[2:]
    kinds = frame.schema
    if third and _is_map(frame):
        return "map"
    if kinds[x] == pl.String:
        return "scatter" if frame.select(x, *third).is_duplicated().any() else "bar"
    is_function = not frame.select(x, *third).is_duplicated().any()
    is_ordered = kinds[x] == pl.Int64 or frame[x].is_sorted()
    return "line" if is_function and is_ordered else "scatter"


def _is_map(frame: pl.DataFrame) -> bool:
    """Return whether x and y are the coordinates of a number, rather than x and y of a series."""
    x, y, value = frame.dtypes
    if value == pl.String or pl.Float64 in (x, y):
        return False
    is_coordinate = y == pl.String or value == pl.Float64 or {*frame.columns[:2]} == OPERANDS
    return is_coordinate and not frame[:, :2].is_duplicated().any()


def labels(query: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the labels of columns: names, with the meaning that the tables of a query give them.

    A column without a meaning, or with several, is its name alone.
    """
    words = {*re.findall(r"\w+", query.lower())}
    documented = dictionary.tables(PROJECT / "stages")
    named = [table for name, table in documented.items() if name in words]
    texts = {}
    for column in columns:
        meanings = {table.columns[column][1] for table in named if column in table.columns}
        texts[column] = column
        if len(meanings) == 1:
            texts[column] += f": {first_sentence(*meanings).partition('; ')[0]}"
    return texts


def _fitted(text: str, inches: float) -> str:
    """Return a label in two lines at most; without its meaning if an axis is too short for it."""
    letters = int(LETTERS * inches)
    if letters < 20:
        return text.partition(":")[0]
    return fill(text, letters, max_lines=2, placeholder=" …")


def _series(frame: pl.DataFrame) -> list[tuple[str, str, pl.DataFrame]]:
    """Return the label, colour and rows of each series; a frame of two columns is one of them."""
    if frame.width < 3:
        return [("", COLOURS[0], frame)]
    name = frame.columns[2]
    values = frame[name].unique(maintain_order=True)
    values = values if values.dtype == pl.String else values.sort()
    if len(values) > len(COLOURS):
        problem = f"the column {name} has {len(values):,} values, and a plot {len(COLOURS)} series"
        raise QueryError(f"{problem} at most; select some of them with `where`, or try --kind map")
    parts = [frame.filter(frame[name] == value) for value in values]
    return list(zip(map(str, values), COLOURS, parts, strict=False))


def _axes(frame: pl.DataFrame, texts: dict[str, str], width: float = WIDTH) -> tuple[Figure, Axes]:
    """Return an empty figure with labelled axes. Raises QueryError if y is not a number."""
    x, y, *_ = frame.columns
    if frame[y].dtype == pl.String:
        raise QueryError(f"the column {y} is a text, and y is a number; select x, then y")
    figure, axes = drawing.panels(1, 1, "", (width, HEIGHT))
    axis = axes[0, 0]
    axis.set_xlabel(_fitted(texts[x], WIDTH))
    axis.set_ylabel(_fitted(texts[y], 0.75 * HEIGHT))
    for ruler, name in ((axis.xaxis, x), (axis.yaxis, y)):
        ruler.get_offset_text().set_size(7)
        if frame[name].dtype == pl.Int64:
            ruler.get_major_locator().set_params(integer=True)
    return figure, axis


def _finished(figure: Figure, frame: pl.DataFrame, texts: dict[str, str]) -> Figure:
    if frame.width > 2:
        drawing.legend(figure)
        figure.legends[0].set_title(_fitted(texts[frame.columns[2]], WIDTH))
        figure.legends[0].get_title().set_fontsize(8)
    drawing.settle(figure)
    return figure


def line(frame: pl.DataFrame, texts: dict[str, str]) -> Figure:
    figure, axis = _axes(frame, texts)
    x, y, *_ = frame.columns
    for label, colour, part in _series(frame):
        xs, ys = part.sort(x).select(x, y).to_numpy().T
        drawing.curve(axis, xs, ys, label, colour)
    return _finished(figure, frame, texts)


def scatter(frame: pl.DataFrame, texts: dict[str, str]) -> Figure:
    figure, axis = _axes(frame, texts)
    x, y, *_ = frame.columns
    names = _names(axis, frame[x])
    for label, colour, part in _series(frame):
        places = part[x].replace_strict(names) if names else part[x]
        style: dict[str, Any] = {"s": 8, "linewidths": 0, "alpha": 0.7, "color": colour}
        is_pixels = frame.height > POINTS
        axis.scatter(places, part[y], label=label, rasterized=is_pixels, **style)
    return _finished(figure, frame, texts)


def bar(frame: pl.DataFrame, texts: dict[str, str]) -> Figure:
    x, y, *third = frame.columns
    bars = frame.height
    if bars > MOST_BARS:
        problem = f"the query has {bars:,} rows, and a plot {MOST_BARS} bars at most"
        raise QueryError(f"{problem}; add a limit, or try --kind scatter")
    if frame.select(x, *third).is_duplicated().any():
        raise QueryError(f"{x} occurs several times; group the rows by it, or try --kind scatter")
    figure, axis = _axes(frame, texts, max(WIDTH, 0.2 * bars))
    frame = frame.with_columns(pl.col(x).cast(pl.String))
    names = _names(axis, frame[x])
    series = _series(frame)
    width = 0.8 / len(series)
    for number, (label, colour, part) in enumerate(series):
        places = part[x].replace_strict(names).to_numpy()
        shift = (number - (len(series) - 1) / 2) * width
        axis.bar(places + shift, part[y].to_numpy(), width, label=label, color=colour)
    return _finished(figure, frame, texts)


def _names(axis: Axes, column: pl.Series) -> dict[str, int]:
    """Write texts below the axis, in the order of the rows; return the place of each."""
    if column.dtype != pl.String:
        return {}
    names = column.unique(maintain_order=True).to_list()
    is_long = sum(map(len, names)) > 8 * WIDTH
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(names)), names, **(turned if is_long else {}))
    return dict(zip(names, range(len(names)), strict=True))


def heat_map(frame: pl.DataFrame, texts: dict[str, str]) -> Figure:
    """Draw the third column over the first two; operands are drawn as a neuron map."""
    if frame.width < 3 or frame.dtypes[2] == pl.String:
        raise QueryError("a map takes three columns: two coordinates, then a number; add it")
    if frame[:, :2].is_duplicated().any():
        pair = " and ".join(frame.columns[:2])
        raise QueryError(f"pairs of {pair} occur several times; group the rows by both")
    x, y, value = frame.columns
    if {x, y} == OPERANDS:
        x, y = "op2", "op1"
    long = frame.select(row=y, column=x, value=pl.col(value).cast(pl.Float64))
    limits = _limits(long["value"].to_numpy())
    is_large = max(long["row"].n_unique(), long["column"].n_unique()) > NUMBERED
    is_numbered = long.schema["row"] == long.schema["column"] == pl.Int64
    is_axis = is_numbered and (is_large or {x, y} == OPERANDS)
    figure, axes, height = (_numbered if is_axis else _named)(long, limits)
    axes[0, 0].set_xlabel(_fitted(texts[x], WIDTH))
    axes[0, 0].set_ylabel(_fitted(texts[y], height))
    heat.colour_bar(figure, axes, limits, _fitted(texts[value], height))
    (drawing.settle if is_axis else heat.finish)(figure)
    return figure


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return the values of the first and last colour, opposites if some values are negative.

    Colours end at the value that 1 in 200 exceeds, so a few extreme values do not make the rest
    pale.
    """
    most = float(np.quantile(np.abs(values), 0.995) or np.abs(values).max() or 1)
    return (-most if values.min() < 0 else 0.0), most


def _numbered(long: pl.DataFrame, limits: tuple[float, float]) -> tuple[Figure, np.ndarray, float]:
    """Draw a map over two whole numbers, a square for each pair; return its height, inches."""
    rows, columns = long["row"].to_numpy(), long["column"].to_numpy()
    top, left = rows.min(), columns.min()
    height, width = rows.max() - top + 1, columns.max() - left + 1
    if height * width > 4 * MOST_ROWS:
        problem = f"the map would have {height:,} rows and {width:,} columns"
        raise QueryError(f"{problem}; select a part with `where`")
    values = np.full((height, width), np.nan)
    values[rows - top, columns - left] = long["value"].to_numpy()
    size = WIDTH, float(min(max(WIDTH * height / width, 1), 9))
    figure, axes = drawing.panels(1, 1, "", size)
    edges = (left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5)
    style: dict[str, Any] = {"interpolation": "auto", "aspect": "equal", "extent": edges}
    axes[0, 0].imshow(values, **heat.colours(limits), **style)
    heat.clear(axes[0, 0])
    for ruler in (axes[0, 0].xaxis, axes[0, 0].yaxis):
        ruler.get_major_locator().set_params(integer=True)
    return figure, axes, size[1]


def _named(long: pl.DataFrame, limits: tuple[float, float]) -> tuple[Figure, np.ndarray, float]:
    """Draw a map over texts, or a text and a whole number; texts are in the order of the rows.

    The last result is the map's height, inches.
    """
    rows, columns = (_ordered(long[name]) for name in ("row", "column"))
    if max(len(rows), len(columns)) > MOST_TEXTS:
        problem = f"the map would have {len(rows):,} rows and {len(columns):,} columns"
        raise QueryError(f"{problem}, at most {MOST_TEXTS} fit; select a part with `where`")
    size = max(WIDTH, heat.COLUMN * len(columns)), min(max(0.17 * len(rows), 1.2), 9)
    figure, axes = drawing.panels(1, 1, "", size)
    long = long.with_columns(pl.col("row", "column").cast(pl.String))
    heat.heat_table(axes[0, 0], long, rows, columns, limits)
    return figure, axes, size[1]


def _ordered(column: pl.Series) -> list[str]:
    values = column.unique(maintain_order=True)
    return (values if values.dtype == pl.String else values.sort()).cast(pl.String).to_list()


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix. The bytes do not depend on the date."""
    suffix = path.suffix.lower()
    with replacing(path) as partial:
        figure.savefig(partial, format=suffix[1:], metadata=DATES[suffix])
    drawing.plt.close(figure)


KINDS: dict[str, Draw] = {"line": line, "scatter": scatter, "bar": bar, "map": heat_map}
