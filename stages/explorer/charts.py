"""Describe figures as plotly.js reads them.

They are plain dicts, because plotly's own classes would spend more time on checking a figure than
all else takes. The colours of text are those of the page, light or dark (assets/explorer.css).
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

Figure = dict[str, Any]  # data: traces, layout
# as in stages/lib/drawing, which would load matplotlib
BLUE, VERMILION, GREY, BLACK = "#0072b2", "#d55e00", "#888888", "#000"
QUIET = "rgba(128,128,128,0.25)"  # grid lines
NO_CELL = "rgba(128,128,128,0.35)"
CLEAR = "rgba(0,0,0,0)"
COLOURED = 0.995  # quantile of the absolute values at which colours end
DIVERGING = [  # ColorBrewer's RdBu, as in the pipeline's own figures
    "#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7",
    "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f",
]  # fmt: skip
LARGEST_INT16 = 32767
KINDS = {"float32": "f4", "float64": "f8", "int16": "i2", "int32": "i4"}  # NumPy -> plotly.js
CATEGORIES = {"autorange": "reversed", "showgrid": False, "type": "category"}  # from the top


def packed(values: np.ndarray) -> dict[str, str]:
    """Return numbers as plotly.js reads them fastest: their bytes, with few per whole number."""
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.dtype.kind in "iub":
        small = np.abs(values).max(initial=0) <= LARGEST_INT16
        values = values.astype(np.int16 if small else np.int32)
    data = base64.b64encode(values.tobytes()).decode()
    described = {"dtype": KINDS[values.dtype.name], "bdata": data}
    if values.ndim > 1:
        described["shape"] = ", ".join(map(str, values.shape))
    return described


def plain(
    traces: list[dict],
    height: int,
    x: dict | None = None,
    y: dict | None = None,
    **more: Any,
) -> Figure:
    """Return a figure with the layout that all share. height: pixels; x, y: of the axes."""
    axis = {"gridcolor": QUIET, "zerolinecolor": QUIET, "automargin": True}
    layout = {
        "height": height,
        "font": {"size": 12},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "margin": {"l": 50, "r": 10, "t": 28, "b": 40},
        "modebar": {"bgcolor": CLEAR, "color": GREY, "activecolor": BLUE},
        "xaxis": axis | (x or {}),
        "yaxis": axis | (y or {}),
    }
    return {"data": traces, "layout": layout | more}


def titled(text: str) -> dict[str, Any]:
    """Return the title of an axis."""
    return {"title": {"text": text}}


def heat(
    values: np.ndarray,
    facts: np.ndarray | None,
    hover: str,
    *,
    corner: tuple[int, int] = (0, 0),
    size: int = 560,
    limit: float | None = None,
) -> Figure:
    """Return a map over op1 (down) and op2 (across), blue below zero and red above, grey for NaN.

    facts: numbers per cell, (op1, op2) or (op1, op2, …), which `hover` calls %{customdata};
    corner: op1 and op2 of the first cell; size: pixels; limit: the value at which colours end, by
    default the COLOURED quantile of the absolute values.
    """
    end = limit or _limit(values)
    trace = {
        "type": "heatmap",
        "z": packed(values),
        "x0": corner[1],
        "dx": 1,
        "y0": corner[0],
        "dy": 1,
        "zmin": -end,
        "zmax": end,
        "colorscale": _scale(DIVERGING),
        "hovertemplate": hover + "<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"thickness": 12, "outlinewidth": 0},
    }
    if facts is not None:
        trace["customdata"] = packed(facts)
    rows, columns = values.shape
    frame = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    x_range = [corner[1] - 0.5, corner[1] + columns - 0.5]
    y_range = [corner[0] + rows - 0.5, corner[0] - 0.5]
    x = frame | titled("op2") | {"range": x_range}
    y = frame | titled("op1") | {"range": y_range, "scaleanchor": "x"}
    return plain([trace], size, x, y, plot_bgcolor=NO_CELL, width=size + 60)


def _limit(values: np.ndarray) -> float:
    """Return the value at which colours end, above 0."""
    sizes = np.abs(values[np.isfinite(values)])
    if not sizes.size:
        return 1.0
    return float(np.quantile(sizes, COLOURED)) or float(sizes.max()) or 1.0


def _scale(colours: Sequence[str]) -> list[list]:
    """Return evenly spaced colours, each with its place from 0 to 1."""
    return [[place / (len(colours) - 1), colour] for place, colour in enumerate(colours)]


def sequential(drawn: Figure, values: np.ndarray) -> float:
    """Colour a map of probabilities from its lowest value, light, to 1, dark; return that value.

    The colours span 0.01 at least, so that a map of equal values is not all dark for differences
    that nobody could see.
    """
    lowest = min(float(np.nanmin(values)), 0.99)
    drawn["data"][0] |= {"zmin": lowest, "zmax": 1.0, "colorscale": _scale(DIVERGING[5:])}
    return lowest


def crossed(drawn: Figure, op1: Sequence[int], op2: Sequence[int]) -> None:
    """Put a cross on some cells of a map."""
    marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": BLACK}}
    _mark(drawn, op1, op2, marker)


def marked(drawn: Figure, op1: int, op2: int) -> None:
    """Put a square around a cell of a map."""
    marker = {"symbol": "square-open", "size": 24, "color": BLACK, "line": {"width": 2}}
    _mark(drawn, [op1], [op2], marker)


def _mark(drawn: Figure, op1: Sequence[int], op2: Sequence[int], marker: dict) -> None:
    trace = {"type": "scatter", "x": op2, "y": op1, "mode": "markers"}
    drawn["data"].append(trace | {"hoverinfo": "skip", "marker": marker})


def outline(drawn: Figure, holds: np.ndarray) -> None:
    """Draw the outline of some cells, bool (op1, op2), over a map."""
    padded = np.pad(holds.astype(np.float32), 1)  # so that the outline closes at the edges
    trace = {
        "type": "contour",
        "z": packed(padded),
        "x0": -1,
        "dx": 1,
        "y0": -1,
        "dy": 1,
        "showscale": False,
        "hoverinfo": "skip",
        "contours": {"start": 0.5, "end": 0.5, "size": 1, "coloring": "lines"},
        "line": {"width": 1.2},
        "colorscale": [[0, BLACK], [1, BLACK]],
    }
    drawn["data"].append(trace)


def steps(names: Sequence[str], values: Sequence[float], total: str, label: str) -> Figure:
    """Return a waterfall: each part starts where the part above ends, and the last is the sum."""
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "y": [*names, total],
        "x": [*values, 0],
        "measure": [*(["relative"] * len(names)), "total"],
        "connector": {"line": {"color": GREY, "width": 1}},
        "increasing": {"marker": {"color": BLUE}},
        "decreasing": {"marker": {"color": VERMILION}},
        "totals": {"marker": {"color": GREY}},
        "text": list(map("{:+.2f}".format, [*values, sum(values)])),
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{delta:+.3f}<extra></extra>",
    }
    return plain([trace], 70 + 24 * (len(names) + 1), titled(label), CATEGORIES)


def line(x: np.ndarray, y: np.ndarray, x_label: str, y_label: str) -> Figure:
    """Return a line over whole numbers."""
    return plain([_line(x, y)], 240, titled(x_label), titled(y_label))


def panels(lines: dict[str, tuple[np.ndarray, np.ndarray]], y_label: str) -> Figure:
    """Return panels side by side on the same scale. lines: label of the x axis -> x, y."""
    traces, axes, width = [], {}, 1 / len(lines)
    for place, (x_label, (x, y)) in enumerate(lines.items()):
        number = str(place + 1) if place else ""
        traces.append(_line(x, y) | {"xaxis": f"x{number}"})
        domain = [place * width, (place + 0.93) * width]
        axis = titled(x_label) | {"domain": domain, "gridcolor": QUIET, "anchor": "y"}
        axes[f"xaxis{number}"] = axis
    return plain(traces, 230, None, titled(y_label), **axes)


def _line(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    drawn = {"color": BLUE, "width": 1.2}
    return {"type": "scatter", "x": packed(x), "y": packed(y), "mode": "lines", "line": drawn}


def bars(table: pl.DataFrame, name: str, groups: dict[str, str], label: str) -> Figure:
    """Return horizontal bars, up to two per row.

    name: the column with the names of rows; groups: column -> its name in the legend; label: of
    the x axis.
    """
    traces = []
    for (column, legend), colour in zip(groups.items(), (BLUE, VERMILION), strict=False):
        trace = {
            "type": "bar",
            "orientation": "h",
            "y": table[name].to_list(),
            "x": table[column].to_list(),
            "name": legend,
            "marker": {"color": colour},
        }
        traces.append(trace)
    drawn = plain(traces, 90 + 26 * table.height, titled(label), CATEGORIES, barmode="group")
    above = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
    drawn["layout"] |= {"showlegend": True, "legend": above}
    return drawn
