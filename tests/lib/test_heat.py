"""Heat maps write numbers and names if there is room for them."""

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from stages.lib.drawing import drawing, heat
from tests.deep_tables import crowded

pytestmark = pytest.mark.usefixtures("close_figures")


def drawn(
    shape: tuple[int, int],
    size: tuple[float, float],
    limits: tuple[float, float],
    name: str = "{}",
) -> tuple[Figure, Axes, np.ndarray]:
    """Draw a heat map of random values between the limits: its figure, axes and values.

    shape: rows and columns; size: inches.
    """
    values = np.random.default_rng(0).uniform(*limits, shape)
    rows, columns = (list(map(name.format, range(count))) for count in shape)
    row, column = np.indices(shape).reshape(2, -1)
    names = {"row": np.array(rows)[row], "column": np.array(columns)[column]}
    table = pl.DataFrame({**names, "value": values.ravel()})
    figure, [[axis]] = drawing.panels(1, 1, "", size)
    heat.heat_table(axis, table, rows, columns, limits)
    heat.finish(figure)
    return figure, axis, values


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 4), (2, 1)),
        ((12, 7), (2, 2)),
        ((30, 14), (2.6, 2.3)),
        ((60, 5), (2, 3)),
        ((4, 40), (3, 1)),
    ],
)
@pytest.mark.parametrize("limits", [(0, 1), (-26, 26), (-0.02, 0.02)])
@pytest.mark.parametrize("name", ["{}", "L{} head 3"])
def test_no_text_overlaps_another(
    shape: tuple[int, int], size: tuple[float, float], limits: tuple[float, float], name: str
):
    figure, axis, values = drawn(shape, size, limits, name)
    assert crowded(figure) == []
    np.testing.assert_array_equal(axis.images[0].get_array(), values)
    assert len(axis.texts) in (0, values.size)
    width = axis.get_window_extent().width / shape[1]
    assert all(text.get_window_extent().width <= width for text in axis.texts)


@pytest.mark.parametrize(("width", "characters"), [(3, 4), (1.1, 4), (0.7, 3), (0.4, 0)])
def test_numbers_have_fewer_digits_if_there_is_less_room(width: float, characters: int):
    _, axis, _ = drawn((2, 4), (width, 1), (0, 1))
    lengths = [len(text.get_text()) for text in axis.texts]
    assert lengths == ([characters] * 8 if characters else [])


def test_values_of_a_map_with_an_extent_are_written_into_their_cells():
    figure, [[axis]] = drawing.panels(1, 1, "", (3, 2))
    axis.imshow([[0.5, 0.25]], **heat.colours((0, 1)), aspect="auto", extent=(9.5, 11.5, 0.5, -0.5))
    heat.finish(figure)
    places = {text.get_text(): text.get_position() for text in axis.texts}
    assert places == {"0.50": (10, 0), "0.25": (11, 0)}


def test_names_that_the_next_map_has_are_not_repeated():
    """Rows of the lower right map have other names than those of the map on its left."""
    figure, axes = drawing.panels(2, 2, "", (2, 1))
    for number, axis in enumerate(axes.flat):
        rows = ["x", "y"] if number == 3 else ["a", "b"]
        table = pl.DataFrame({"row": rows, "column": ["c", "d"], "value": [0.1, 0.2]})
        heat.heat_table(axis, table, rows, ["c", "d"], (0, 1))
    heat.finish(figure)
    shown = [[names(axis.yaxis), names(axis.xaxis)] for axis in axes.flat]
    below = ["c", "d"]
    assert shown == [[["a", "b"], []], [[], []], [["a", "b"], below], [["x", "y"], below]]


def names(axis: Axis) -> list[str]:
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if tick.label1.get_visible()]
