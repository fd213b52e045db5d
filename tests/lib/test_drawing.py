"""What every figure shares."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from stages.lib.drawing import drawing


@pytest.mark.parametrize(
    ("columns", "entries", "words"),
    [(2, 6, "effect_plus_std"), (4, 6, "effect_plus_std"), (1, 9, "a long name of a line"), (1, 1, "x" * 99)],
)
def test_a_legend_stays_inside_its_figure(columns: int, entries: int, words: str):
    figure, axes = drawing.panels(1, columns, "title")
    for number in range(entries):
        drawing.curve(axes[0, 0], [0, 1], [0, number], f"{words} {number}", drawing.BLUE)
    drawing.legend(figure)
    FigureCanvasAgg(figure).draw()
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{words} {number}" for number in range(entries)]
    if len(words) < 99:  # which no column is wide enough for
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
    wide = legend.get_window_extent().width * (legend._ncols + 1) / legend._ncols
    assert legend._ncols == min(6, entries) or wide > figure.bbox.width  # as many columns as fit
