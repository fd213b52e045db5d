"""Figures, as plotly.js reads them. Plain dicts: plotly's own classes would spend more time on checking one than all else takes.

Colours of text are the page's, light or dark (assets/explorer.css).
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

Figure = dict[str, Any]  # data: traces, layout
BLUE, VERMILION, GREY = "#0072b2", "#d55e00", "#888888"  # as in stages/lib/drawing, which would load matplotlib
QUIET = "rgba(128,128,128,0.25)"  # lines of the grid
NO_CELL = "rgba(128,128,128,0.35)"
CLEAR = "rgba(0,0,0,0)"
COLOURED = 0.995  # share of cells whose value the colours tell apart; the few beyond it have the last colour
DIVERGING = [  # ColorBrewer's RdBu, as in the pipeline's own figures
    "#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f",
]  # fmt: skip
KINDS = {"float32": "f4", "float64": "f8", "int16": "i2", "int32": "i4"}  # numpy's names of numbers: plotly.js's


def packed(values: np.ndarray) -> dict[str, str]:
    """Numbers as plotly.js takes them fastest: their bytes, whole numbers in as few as they need."""
    values = values.astype(np.float32 if values.dtype.itemsize < 4 else values.dtype) if values.dtype.kind == "f" else values
    if values.dtype.kind in "iub":
        values = values.astype(np.int16 if np.abs(values).max(initial=0) < 1 << 15 else np.int32)
    shape = {"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {}
    return {"dtype": KINDS[values.dtype.name], "bdata": base64.b64encode(values.tobytes()).decode(), **shape}


def plain(traces: list[dict], height: int, x: dict | None = None, y: dict | None = None, **more: Any) -> Figure:
    """What all figures have in common. height: pixels; x, y: of the axes."""
    axis = {"gridcolor": QUIET, "zerolinecolor": QUIET, "automargin": True}
    layout = {
        "height": height, "font": {"size": 12}, "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "showlegend": False,
        "margin": {"l": 50, "r": 10, "t": 28, "b": 40}, "modebar": {"bgcolor": CLEAR, "color": GREY, "activecolor": BLUE},
        "xaxis": axis | (x or {}), "yaxis": axis | (y or {}),
    }  # fmt: skip
    return {"data": traces, "layout": layout | more}


def titled(text: str) -> dict[str, Any]:
    """What an axis is called."""
    return {"title": {"text": text}}


def heat(values: np.ndarray, facts: np.ndarray | None, hover: str, *, corner: tuple[int, int] = (0, 0), size: int = 560,
         limit: float | None = None) -> Figure:  # fmt: skip
    """A map over op1 (down) and op2 (across), blue below zero and red above; NaN where there is nothing.

    facts: of each cell a number, or numbers (op1, op2, …), for `hover`, as %{customdata}; corner: op1 and op2 of the first cell; limit:
    where colours end, by default at what COLOURED cells stay below.
    """
    known = np.abs(values[np.isfinite(values)])
    end = limit or float(np.quantile(known, COLOURED) if known.size else 0) or float(known.max(initial=0)) or 1.0
    trace = {
        "type": "heatmap", "z": packed(values), "x0": corner[1], "dx": 1, "y0": corner[0], "dy": 1, "zmin": -end, "zmax": end,
        "colorscale": [[place / 10, colour] for place, colour in enumerate(DIVERGING)], "hovertemplate": hover + "<extra></extra>",
        "hoverongaps": False, "colorbar": {"thickness": 12, "outlinewidth": 0},
    }  # fmt: skip
    if facts is not None:
        trace["customdata"] = packed(facts)
    rows, columns = values.shape
    frame = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    x = frame | titled("op2") | {"range": [corner[1] - 0.5, corner[1] + columns - 0.5]}
    y = frame | titled("op1") | {"range": [corner[0] + rows - 0.5, corner[0] - 0.5], "scaleanchor": "x"}
    return plain([trace], size, x, y, plot_bgcolor=NO_CELL, width=size + 60)


def sequential(drawn: Figure, values: np.ndarray) -> float:
    """Colour a map of probabilities from its lowest value, light, to 1, dark; return that value.

    The colours span 0.01 at least, so that a map of equal values is not all dark for differences
    that nobody could see.
    """
    lowest = min(float(np.nanmin(values)), 0.99)
    colours = DIVERGING[5:]
    scale = [[place / (len(colours) - 1), colour] for place, colour in enumerate(colours)]
    drawn["data"][0] |= {"zmin": lowest, "zmax": 1.0, "colorscale": scale}
    return lowest


def crossed(drawn: Figure, op1: Sequence[int], op2: Sequence[int]) -> None:
    """Put a cross on some cells of a map."""
    marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "#000"}}
    trace = {"type": "scatter", "x": op2, "y": op1, "mode": "markers"}
    drawn["data"].append(trace | {"hoverinfo": "skip", "marker": marker})


def outline(drawn: Figure, holds: np.ndarray) -> None:
    """Draws the outline of some cells, bool (op1, op2), over a map."""
    padded = np.pad(holds.astype(np.float32), 1)  # so that it closes at the edges
    drawn["data"].append({
        "type": "contour", "z": packed(padded), "x0": -1, "dx": 1, "y0": -1, "dy": 1, "showscale": False, "hoverinfo": "skip",
        "contours": {"start": 0.5, "end": 0.5, "size": 1, "coloring": "lines"}, "line": {"width": 1.2},
        "colorscale": [[0, "#000"], [1, "#000"]],
    })  # fmt: skip


def marked(drawn: Figure, op1: int, op2: int) -> None:
    """Puts a square around one cell of a map."""
    marker = {"symbol": "square-open", "size": 24, "color": "#000", "line": {"width": 2}}
    drawn["data"].append({"type": "scatter", "x": [op2], "y": [op1], "mode": "markers", "hoverinfo": "skip", "marker": marker})


def steps(names: Sequence[str], values: Sequence[float], total: str, label: str) -> Figure:
    """A stacked bar, unrolled: each part starts where the one above it ends, and the last line is what they add up to."""
    trace = {
        "type": "waterfall", "orientation": "h", "y": [*names, total], "x": [*values, 0],
        "measure": [*(["relative"] * len(names)), "total"], "connector": {"line": {"color": GREY, "width": 1}},
        "increasing": {"marker": {"color": BLUE}}, "decreasing": {"marker": {"color": VERMILION}}, "totals": {"marker": {"color": GREY}},
        "text": [f"{value:+.2f}" for value in [*values, sum(values)]], "textposition": "outside", "cliponaxis": False,
        "hovertemplate": "%{y}: %{delta:+.3f}<extra></extra>",
    }  # fmt: skip
    y = {"autorange": "reversed", "showgrid": False, "type": "category"}
    return plain([trace], 70 + 24 * (len(names) + 1), titled(label), y)


def line(x: np.ndarray, y: np.ndarray, across: str, up: str) -> Figure:
    """One line over whole numbers."""
    return plain([_line(x, y)], 240, titled(across), titled(up))


def panels(lines: dict[str, tuple[np.ndarray, np.ndarray]], up: str) -> Figure:
    """A line in each panel, on one scale, by what it runs along."""
    traces, axes, width = [], {}, 1 / len(lines)
    for place, (across, (x, y)) in enumerate(lines.items()):
        number = str(place + 1) if place else ""
        traces.append(_line(x, y) | {"xaxis": f"x{number}"})
        axes[f"xaxis{number}"] = titled(across) | {"domain": [place * width, (place + 0.93) * width], "gridcolor": QUIET, "anchor": "y"}
    return plain(traces, 230, None, titled(up), **axes)


def _line(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {"type": "scatter", "x": packed(x), "y": packed(y), "mode": "lines", "line": {"color": BLUE, "width": 1.2}}


def bars(table: pl.DataFrame, name: str, groups: dict[str, str], label: str) -> Figure:
    """Bars beside each other; groups: column -> what it is called."""
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": table[name].to_list(),
            "x": table[column].to_list(),
            "name": called,
            "marker": {"color": colour},
        }
        for (column, called), colour in zip(groups.items(), (BLUE, VERMILION), strict=False)
    ]
    y = {"autorange": "reversed", "showgrid": False, "type": "category"}
    legend = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
    return plain(traces, 90 + 26 * table.height, titled(label), y, barmode="group", showlegend=True, legend=legend)
