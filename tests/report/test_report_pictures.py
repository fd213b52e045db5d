"""Pictures and maps on the page: small, and true to what they are made from."""

import base64
from pathlib import Path

import numpy as np
from PIL import Image

from stages.report.page import pictures
from stages.report.page.maps import NO_CELL, averaged, busiest, drawn


def test_a_map_keeps_extremes_marks_what_is_no_cell_and_frames_what_averaging_hides():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(31, 31)) * 0.01
    values[12:20, 5:13] += np.where(
        np.indices((8, 8)).sum(0) % 2, 3.0, -3.0
    )  # fine stripes, gone in means of 4 by 4
    valid = np.tri(31, dtype=bool)
    small = drawn(values, valid, side=8, detail=8)
    assert (small.block, small.whole.shape, small.detail.shape) == (4, (8, 8), (8, 8))
    lost = np.where(
        valid, (values - np.kron(averaged(values, valid, 4), np.ones((4, 4)))[:31, :31]) ** 2, 0
    )
    sums = {
        (top, left): lost[top : top + 8, left : left + 8].sum()
        for top in range(24)
        for left in range(24)
    }
    assert small.corner == max(sums, key=sums.get)
    top, left = small.corner
    part, inside = values[top : top + 8, left : left + 8], valid[top : top + 8, left : left + 8]
    np.testing.assert_allclose(
        small.detail[inside] / 127 * small.scale, part[inside], atol=small.scale / 250
    )
    assert ((small.detail == NO_CELL) == ~inside).all()
    assert small.scale == np.abs(values[valid]).max()
    for row, column in np.ndindex(8, 8):
        at = slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4)
        cells = values[at][valid[at]]
        code = small.whole[row, column]
        assert (
            code == NO_CELL
            if not cells.size
            else abs(code / 127 * small.scale - cells.mean()) <= small.scale / 250
        )


def test_a_map_that_fits_has_no_detail_and_one_of_zeros_is_zeros():
    values = np.arange(9.0).reshape(3, 3)
    whole = drawn(values, np.ones((3, 3), bool), side=5, detail=2)
    assert (whole.corner, whole.detail.size, whole.block) == (None, 0, 1)
    np.testing.assert_array_equal(whole.whole, np.round(values / 8 * 127))
    assert not drawn(np.zeros((3, 3)), np.ones((3, 3), bool), 5, 2).whole.any()
    assert busiest(np.ones((2, 2)), 5) == (0, 0)


def test_a_picture_is_its_smaller_form_and_no_wider_than_asked(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 600, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    (tmp_path / "a.svg").write_text("<svg/>")
    assert pictures.picture(tmp_path / "a", 300, 80) == "<svg/>"
    (tmp_path / "a.svg").write_text("<svg>" + "".join(map(str, noise.ravel())) + "</svg>")
    webp = base64.b64decode(pictures.picture(tmp_path / "a", 300, 80))
    (tmp_path / "a.webp").write_bytes(webp)
    with Image.open(tmp_path / "a.webp") as opened:
        assert (opened.format, opened.size) == ("WEBP", (300, 100))
    assert pictures.picture(tmp_path / "b", 300, 80) is None
