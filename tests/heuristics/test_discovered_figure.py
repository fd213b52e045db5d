"""The figure of discovered predicates."""

import polars as pl

from stages.heuristics import discovered_figure
from stages.lib.drawing import drawing


def test_the_medians_stay_within_their_panels():
    operators = pl.DataFrame({"operator": list(drawing.COLOURS)})
    neurons = pl.DataFrame(
        {
            "discovered": [True, True, False],
            "atoms": [1, 2, None],
            "explained": [0.5, 0.7, None],
            "catalogue_explained": [0.25, 0.35, 0.1],
        }
    )
    counts = pl.DataFrame(
        {
            "layer": [0, 1],
            "both": [300, 200],
            "only_discovered": [200, 300],
            "only_labelled": [0, 1],
        }
    )
    tables = {
        "discovered": operators.join(neurons, how="cross"),
        "discovered_and_labels": operators.join(counts, how="cross"),
    }
    figure = discovered_figure.discovered("m", tables)
    figure.draw_without_rendering()
    panels = [axis for axis in figure.axes if axis.texts]
    assert len(panels) == operators.height
    for axis in panels:
        [text] = axis.texts
        assert "predicate 0.60" in text.get_text()
        assert "catalogue 0.30" in text.get_text()
        box, panel = text.get_window_extent(), axis.get_window_extent()
        assert panel.x0 <= box.x0 < box.x1 <= panel.x1
        assert panel.y0 <= box.y0 < box.y1 <= panel.y1
