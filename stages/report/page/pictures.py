"""Read figures for the page: as their vector file or as a bitmap, whichever is smaller.

This is the only importer of Pillow in the pipeline.
"""

import base64
import io
import zlib
from pathlib import Path

from PIL import Image


def picture(path: Path, width: int, quality: int) -> str | None:
    """Return SVG text, or a WebP bitmap in base64; None if path.svg or path.png is missing.

    width: of the bitmap, at most, in pixels; quality: of the bitmap, 1 to 100.
    """
    vector, raster = path.with_suffix(".svg"), path.with_suffix(".png")
    if not (vector.exists() and raster.exists()):
        return None
    text = vector.read_text(encoding="utf-8")
    with Image.open(raster) as opened:
        image = opened.convert("RGB")
    if image.width > width:
        height = round(image.height * width / image.width)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    small = io.BytesIO()
    image.save(small, "WEBP", quality=quality, method=4)
    if len(zlib.compress(text.encode(), 9)) <= small.tell():
        return text
    return base64.b64encode(small.getvalue()).decode()
