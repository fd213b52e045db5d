"""Figures for the page. The one importer of plotly. Colours of text are the page's, light or dark (assets/explorer.css)."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

BLUE, VERMILION, GREY = "#0072b2", "#d55e00", "#888888"  # as in stages/lib/drawing, which loads matplotlib
QUIET = "rgba(128,128,128,0.25)"  # lines of the grid
NONE = "rgba(128,128,128,0.35)"  # places of a map that are no cell
MODEBAR = {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE}
Figure = go.Figure


def plain(height: int = 320, **more) -> go.Layout:
    """What all figures have in common."""
    axis = {"gridcolor": QUIET, "zerolinecolor": QUIET, "automargin": True}
    common = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "modebar": MODEBAR, "margin": {"l": 50, "r": 10, "t": 30, "b": 40}}
    return go.Layout(height=height, font={"size": 12}, xaxis=axis, yaxis=axis, **(common | more))


def heat(values: np.ndarray, facts: np.ndarray, hover: str, *, corner: tuple[int, int] = (0, 0), title: str = "", size: int = 560,
         limit: float | None = None) -> go.Figure:  # fmt: skip
    """A map over op1 (down) and op2 (across), blue below zero and red above; NaN where there is nothing.

    facts: of each cell a number, or numbers (op1, op2, …), for `hover`, as %{customdata}; corner: op1 and op2 of the first cell; limit:
    where colours end, by default at what 99.5 % of cells stay below.
    """
    known = np.abs(values[np.isfinite(values)])
    end = limit or float(np.quantile(known, 0.995) if known.size else 1) or float(known.max(initial=0)) or 1.0
    trace = go.Heatmap(
        z=values.astype(np.float32), customdata=facts, x0=corner[1], dx=1, y0=corner[0], dy=1, zmin=-end, zmax=end, colorscale="RdBu",
        reversescale=True, hovertemplate=hover + "<extra></extra>", hoverongaps=False, colorbar={"thickness": 12, "outlinewidth": 0},
    )  # fmt: skip
    figure = go.Figure(trace, plain(size, title={"text": title, "font": {"size": 13}}, plot_bgcolor=NONE, width=size + 60))
    figure.update_xaxes(title="op2", showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(title="op1", showgrid=False, zeroline=False, autorange="reversed", scaleanchor="x", constrain="domain")
    return figure


def outline(figure: go.Figure, holds: np.ndarray, name: str) -> go.Figure:
    """Draws the outline of some cells, bool (op1, op2), over a map."""
    width = 1.2 if holds.mean() > 0.02 or holds.sum() < 4 else 1
    line = {"color": "#000000", "width": width}
    contours = {"start": 0.5, "end": 0.5, "size": 1, "coloring": "lines"}
    padded = np.pad(holds.astype(np.uint8), 1)  # so that it closes at the edges
    figure.add_trace(
        go.Contour(z=padded, x0=-1, dx=1, y0=-1, dy=1, contours=contours, line=line, colorscale=[[0, "#000"], [1, "#000"]], showscale=False,
                   hoverinfo="skip", name=name)
    )  # fmt: skip
    figure.update_xaxes(range=[-0.5, holds.shape[1] - 0.5])
    figure.update_yaxes(range=[holds.shape[0] - 0.5, -0.5], autorange=False)
    return figure


def steps(names: Sequence[str], values: Sequence[float], total: str, label: str) -> go.Figure:
    """A stacked bar, unrolled: each part starts where the one above it ends, and the last line is what they add up to."""
    measure = ["relative"] * len(names) + ["total"]
    parts = go.Waterfall(
        orientation="h", y=[*names, total], x=[*values, 0], measure=measure, connector={"line": {"color": GREY, "width": 1}},
        increasing={"marker": {"color": BLUE}}, decreasing={"marker": {"color": VERMILION}}, totals={"marker": {"color": GREY}},
        text=[f"{value:+.2f}" for value in [*values, sum(values)]], textposition="outside", cliponaxis=False,
        hovertemplate="%{y}: %{delta:+.3f}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(parts, plain(70 + 24 * (len(names) + 1)))
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(title=label)
    return figure


def line(x: Sequence[float], y: Sequence[float], across: str, up: str, height: int = 240) -> go.Figure:
    """One line over whole numbers."""
    figure = go.Figure(go.Scattergl(x=x, y=y, mode="lines", line={"color": BLUE, "width": 1.2}), plain(height))
    figure.update_xaxes(title=across)
    figure.update_yaxes(title=up)
    return figure


def panels(lines: dict[str, tuple[np.ndarray, np.ndarray]], up: str) -> go.Figure:
    """A line in each panel, on one scale, by what it runs along."""
    figure = make_subplots(rows=1, cols=len(lines), shared_yaxes=True, horizontal_spacing=0.02)
    for place, (across, (x, y)) in enumerate(lines.items(), start=1):
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line={"color": BLUE, "width": 1.2}, showlegend=False), row=1, col=place)
        figure.update_xaxes(title=across, row=1, col=place)
    figure.update_layout(plain(230))
    figure.update_xaxes(gridcolor=QUIET, zerolinecolor=QUIET)
    figure.update_yaxes(gridcolor=QUIET, zerolinecolor=QUIET)
    figure.update_yaxes(title=up, row=1, col=1)
    return figure


def bars(table: pl.DataFrame, name: str, groups: dict[str, str], label: str) -> go.Figure:
    """Bars beside each other; groups: column -> what it is called."""
    colours = (BLUE, VERMILION)
    traces = [
        go.Bar(y=table[name], x=table[column], name=called, orientation="h", marker={"color": colour})
        for (column, called), colour in zip(groups.items(), colours, strict=False)
    ]
    figure = go.Figure(traces, plain(90 + 26 * table.height, barmode="group", legend={"orientation": "h", "y": 1.08}))
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(title=label)
    return figure
