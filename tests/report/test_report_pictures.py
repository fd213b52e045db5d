"""Test figures and maps on the page: small, and true to what they are made from."""

import base64
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from stages.lib.drawing import drawing, heat
from stages.report.page import pictures
from stages.report.page.maps import NO_CELL, averaged, busiest, drawn


def test_a_map_keeps_extremes_marks_missing_cells_and_frames_what_averaging_hides():
    values = np.random.default_rng(0).normal(size=(31, 31)) * 0.01
    stripes = np.where(np.indices((8, 8)).sum(0) % 2, 3.0, -3.0)
    values[12:20, 5:13] += stripes  # fine, so that means of 4 by 4 hide them
    valid = np.tri(31, dtype=bool)
    small = drawn(values, valid, side=8, detail=8)
    assert (small.block, small.whole.shape, small.detail.shape) == (4, (8, 8), (8, 8))
    means = np.kron(averaged(values, valid, 4), np.ones((4, 4)))[:31, :31]
    lost = np.where(valid, (values - means) ** 2, 0)
    windows = np.lib.stride_tricks.sliding_window_view(lost, (8, 8)).sum((2, 3))
    assert small.corner == np.unravel_index(windows.argmax(), windows.shape)
    top, left = small.corner
    part = values[top : top + 8, left : left + 8]
    inside = valid[top : top + 8, left : left + 8]
    tolerance = small.scale / 250
    shown = small.detail / 127 * small.scale
    np.testing.assert_allclose(shown[inside], part[inside], atol=tolerance)
    assert ((small.detail == NO_CELL) == ~inside).all()
    assert small.scale == np.abs(values[valid]).max()
    for row, column in np.ndindex(8, 8):
        at = slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4)
        cells, code = values[at][valid[at]], small.whole[row, column]
        if cells.size:
            assert abs(code / 127 * small.scale - cells.mean()) <= tolerance
        else:
            assert code == NO_CELL


def test_a_map_that_fits_has_no_detail():
    values = np.arange(9.0).reshape(3, 3)
    whole = drawn(values, np.ones((3, 3), bool), side=5, detail=2)
    assert (whole.corner, whole.detail.size, whole.block) == (None, 0, 1)
    np.testing.assert_array_equal(whole.whole, np.round(values / 8 * 127))


def test_a_map_of_zeros_is_zeros():
    assert not drawn(np.zeros((3, 3)), np.ones((3, 3), bool), 5, 2).whole.any()
    assert busiest(np.ones((2, 2)), 5) == (0, 0)


def test_a_picture_is_a_vector_file_or_a_bitmap_if_that_is_too_large(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 600, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    (tmp_path / "a.svg").write_text("<svg/>")
    assert pictures.picture(tmp_path / "a", 300, 80, 10) == "<svg/>"
    (tmp_path / "a.svg").write_text("<svg>" + "".join(map(str, noise.ravel())) + "</svg>")
    webp = base64.b64decode(pictures.picture(tmp_path / "a", 300, 80, 10))
    (tmp_path / "a.webp").write_bytes(webp)
    with Image.open(tmp_path / "a.webp") as opened:
        assert (opened.format, opened.size) == ("WEBP", (300, 100))
    assert pictures.picture(tmp_path / "b", 300, 80, 10) is None


def test_a_vector_file_takes_the_colours_of_the_page_except_on_maps(tmp_path: Path):
    figure, axes = drawing.panels(1, 1, "a title")
    values = np.array([[0.0, 1.0]])
    table = pl.DataFrame({"row": ["r", "r"], "column": ["a", "b"], "value": values[0]})
    heat.heat_table(axes[0, 0], table, ["r"], ["a", "b"], (0, 1))
    heat.finish(figure)
    drawing.save(figure, tmp_path / "a")
    before = (tmp_path / "a.svg").read_text()
    text = pictures.themed(before, 80)
    assert before.count('<g style="fill: #ffffff"') == text.count('<g style="fill: #ffffff"') == 1
    assert "#000000" not in text
    assert text.count("#ffffff") == 1
    assert text.startswith("<svg")
    assert "<metadata>" not in text
