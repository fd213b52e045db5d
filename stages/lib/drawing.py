"""One style for every figure: readable in print, the same bytes every time. The one importer of matplotlib."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from stages.lib.files import replacing

plt.rcParams.update(
    {
        "figure.dpi": 150, "savefig.dpi": 150, "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "svg.hashsalt": "fixed", "figure.constrained_layout.use": True,
    }
)  # fmt: skip
COLOURS = {"add": "#0072b2", "subtract": "#d55e00", "multiply": "#009e73", "divide": "#cc79a7"}  # told apart by the colour-blind


def save(figure: Figure, path: Path) -> None:
    """Writes path.png for screens and path.svg for papers, without time stamps."""
    with replacing(path.with_suffix(".png")) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
    with replacing(path.with_suffix(".svg")) as partial:
        figure.savefig(partial, format="svg", metadata={"Date": None})
    plt.close(figure)


def lines(series: dict[str, list[tuple[np.ndarray, np.ndarray, str, str]]], x: str, y: str, title: str) -> Figure:
    """Panels side by side: panel title -> (x values, y values, label, colour) of each line; y runs from 0 to 1."""
    figure, axes = plt.subplots(1, len(series), figsize=(3.4 * len(series), 2.8), sharey=True, squeeze=False)
    for axis, (name, curves) in zip(axes[0], series.items(), strict=True):
        for xs, ys, label, colour in curves:
            axis.plot(xs, ys, label=label, color=colour, marker="o", markersize=2, linewidth=1.2)
        axis.set(title=name, xlabel=x, ylim=(-0.02, 1.02))
        axis.grid(alpha=0.3, linewidth=0.5)
    axes[0][0].set_ylabel(y)
    axes[0][-1].legend(loc="lower right")
    figure.suptitle(title, fontsize=10)
    return figure


def maps(panels: list[tuple[str, np.ndarray]], title: str, columns: int = 4) -> Figure:
    """Heat maps over op1 (down) and op2 (across), each with its own diverging scale centred at 0; NaN cells stay grey."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.3 * columns, 2.05 * rows + 0.4), squeeze=False, sharex=True, sharey=True)
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#d0d0d0")
    for axis, (name, values) in zip(axes.flat, panels, strict=False):
        limit = np.nanmax(np.abs(values)) or 1.0
        image = axis.imshow(values, cmap=colours, vmin=-limit, vmax=limit, origin="upper", interpolation="nearest", aspect="equal")
        axis.set_title(name, pad=3)
        axis.spines[:].set_visible(False)
        figure.colorbar(image, ax=axis, shrink=0.8, aspect=15).ax.tick_params(labelsize=6)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel("op1")
    for axis in axes[-1, :]:
        axis.set_xlabel("op2")
    figure.suptitle(title, fontsize=10)
    return figure
