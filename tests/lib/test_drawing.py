"""What all figures share."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from stages.lib.drawing import drawing

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.mark.parametrize(
    ("columns", "entries", "words"),
    [
        (2, 6, "effect_plus_std"),
        (4, 6, "effect_plus_std"),
        (1, 9, "a long name of a line"),
        (1, 1, "x"),
    ],
)
def test_a_legend_stays_inside_its_figure(columns: int, entries: int, words: str):
    figure, axes = drawing.panels(1, columns, "title")
    labels = [f"{words} {number}" for number in range(entries)]
    for label in labels:
        drawing.curve(axes[0, 0], [0, 1], [0, 1], label, drawing.BLUE)
    drawing.legend(figure)
    FigureCanvasAgg(figure).draw()
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_a_legend_uses_the_width_of_its_figure():
    heights = []
    for columns in (1, 4):
        figure, axes = drawing.panels(1, columns, "title")
        for number in range(6):
            drawing.curve(axes[0, 0], [0, 1], [0, 1], f"a long name {number}", drawing.BLUE)
        drawing.legend(figure)
        FigureCanvasAgg(figure).draw()
        heights.append(figure.legends[0].get_window_extent().height)
    assert heights[1] < heights[0]
