"""Figures for the page: each as its vector file or as a picture, whichever is smaller. The one importer of Pillow."""

import base64
import io
import zlib
from pathlib import Path

from PIL import Image


def picture(path: Path, width: int, quality: int) -> str | None:
    """SVG text, or a WebP picture no wider than `width` pixels, in base64; None where path.svg and path.png are not there.

    quality: of WebP, 1 to 100.
    """
    vector, raster = path.with_suffix(".svg"), path.with_suffix(".png")
    if not (vector.exists() and raster.exists()):
        return None
    text = vector.read_text(encoding="utf-8")
    with Image.open(raster) as opened:
        image = opened.convert("RGB")
    if image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    small = io.BytesIO()
    image.save(small, "WEBP", quality=quality, method=4)
    if len(zlib.compress(text.encode(), 9)) <= small.tell():
        return text
    return base64.b64encode(small.getvalue()).decode()
