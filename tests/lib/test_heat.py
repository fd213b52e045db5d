"""Heat maps write numbers and names where there is room for them."""

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.lib.drawing import drawing, heat
from tests.deep_tables import crowded

pytestmark = pytest.mark.usefixtures("close_figures")


def drawn(
    rows: int,
    columns: int,
    size: tuple[float, float],
    limits: tuple[float, float],
    name: str = "{}",
) -> tuple[Figure, Axes, np.ndarray]:
    """A heat map of random values between the limits, their last 1."""
    values = np.random.default_rng(0).uniform(*limits, (rows, columns))
    downs, acrosses = ([name.format(n) for n in range(count)] for count in (rows, columns))
    long = [(downs[y], acrosses[x], value) for (y, x), value in np.ndenumerate(values)]
    figure, [[axis]] = drawing.panels(1, 1, "", size)
    heat.heat_table(
        axis,
        pl.DataFrame(long, ["row", "column", "value"], orient="row"),
        downs,
        acrosses,
        limits,
    )
    heat.finish(figure)
    return figure, axis, values


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [(3, 4, (2, 1)), (12, 7, (2, 2)), (30, 14, (2.6, 2.3)), (60, 5, (2, 3)), (4, 40, (3, 1))],
)
@pytest.mark.parametrize("limits", [(0, 1), (-26, 26), (-0.02, 0.02)])
@pytest.mark.parametrize("name", ["{}", "L{} head 3"])
def test_nothing_lies_on_another_name_or_number(
    rows: int,
    columns: int,
    size: tuple[float, float],
    limits: tuple[float, float],
    name: str,
):
    figure, axis, values = drawn(rows, columns, size, limits, name)
    assert crowded(figure) == []
    image = np.asarray(axis.images[0].get_array())
    np.testing.assert_array_equal(image, values)
    assert len(axis.texts) in (0, values.size)
    width = axis.get_window_extent().width / columns
    assert all(text.get_window_extent().width <= width for text in axis.texts)


def test_numbers_have_fewer_digits_where_there_is_less_room():
    texts = [drawn(2, 4, (width, 1), (0, 1))[1].texts for width in (3, 1.1, 0.7, 0.4)]
    assert [len(text[0].get_text()) if text else 0 for text in texts] == [4, 4, 3, 0]


def test_a_map_beside_another_stands_where_its_extent_is():
    figure, [[axis]] = drawing.panels(1, 1, "", (3, 2))
    axis.imshow([[0.5, 0.25]], **heat.colours((0, 1)), aspect="auto", extent=(9.5, 11.5, 0.5, -0.5))
    heat.finish(figure)
    assert [(text.get_position(), text.get_text()) for text in axis.texts] == [
        ((10, 0), "0.50"),
        ((11, 0), "0.25"),
    ]
