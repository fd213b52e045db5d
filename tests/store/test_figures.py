"""The gallery shows each neuron's map cell by cell, with its layer, number and rank."""

import numpy as np
import polars as pl
import pytest

from stages.lib.drawing import drawing
from stages.store import figures
from tests.circuit.figure_tables import panels, texts

pytestmark = pytest.mark.usefixtures("close_figures")
RANDOM = np.random.default_rng(0)


def maps(count: int, side: int) -> list[tuple[str, np.ndarray]]:
    values = RANDOM.normal(size=(count, side, side)).astype(np.float32)
    return [(f"map {number}", map) for number, map in enumerate(values)]


def test_maps_are_read_by_rank_and_cells_without_an_answer_stay_empty():
    rank = pl.col("rank")
    op1, op2 = np.tril_indices(3)
    cells = (
        pl.DataFrame({"rank": [2, 1]})
        .with_columns(layer=20 + rank, neuron=7 * rank, variance=10.0 / rank)
        .join(pl.DataFrame({"op1": op1, "op2": op2}), how="cross")
        .with_columns(activation=rank * (pl.col("op1") - pl.col("op2")))
    )
    first, second = figures.read_maps(cells)
    assert first.name == "layer 21, neuron 7\nrank 1, variance 10"
    assert second.name == "layer 22, neuron 14\nrank 2, variance 5"
    np.testing.assert_array_equal(second.values, [[0, np.nan, np.nan], [2, 0, np.nan], [4, 2, 0]])


@pytest.mark.parametrize("side", [24, 100, 300, 700])
def test_every_cell_has_as_many_whole_pixels_as_any_other(side: int):
    [given] = maps(1, side)
    figure = figures.draw([given], "title", "")
    figure.draw_without_rendering()
    [axis] = panels(figure)
    box = axis.get_window_extent()
    pixels = {24: 12, 100: 3, 300: 1, 700: 300 / 700}[side]
    assert (box.width, box.height) == pytest.approx((pixels * side, pixels * side))
    assert (box.x0, box.y0) == pytest.approx((round(box.x0), round(box.y0)))
    np.testing.assert_array_equal(np.asarray(axis.images[0].get_array()), given[1])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_there_is_a_panel_for_each_map_and_none_on_another(count: int):
    figure = figures.draw(maps(count, 10), "a title that is longer than one map is wide", "")
    titles = [axis.get_title() for axis in panels(figure)]
    assert titles == [f"map {number}" for number in range(count)]
    figure.draw_without_rendering()
    boxes = [axis.get_tightbbox().shrunk(0.99, 0.99) for axis in figure.axes]
    assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[:number])
    assert figure.bbox.x1 <= 1400
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_few_extreme_cells_do_not_pale_the_others():
    values = np.tile(np.linspace(-1, 1, 100, dtype=np.float32), (100, 1))
    values[0, 0] = 1000
    [axis] = panels(figures.draw([("map", values)], "title", ""))
    assert axis.images[0].get_clim() == pytest.approx((-1, 1))


@pytest.mark.parametrize(
    ("token", "why"),
    [(None, "no prompt has a one-token answer"), (2, "no answer has a token 2")],
)
def test_an_operator_without_cells_says_why(token: int | None, why: str):
    columns = ["rank", "layer", "neuron", "variance", "op1", "op2", "activation"]
    assert figures.read_maps(pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))) == []
    [axis] = figures.draw([], "title", figures._why_none(token)).axes
    assert f"no data: {why}" in texts(axis)


def test_a_gallery_is_drawn_the_same_every_time(tmp_path):
    given = maps(4, 30)
    for name in ("a", "b"):
        drawing.save(figures.draw(given, "title", ""), tmp_path / name)
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
