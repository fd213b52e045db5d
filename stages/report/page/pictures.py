"""Read figures for the page: vector files whose text and lines take the page's colours.

The page inlines them, so they are transparent and follow light and dark. Colours that mean
something stay as they are: heat maps, and white text on their dark cells. This is the only importer
of Pillow in the pipeline.
"""

import base64
import io
import re
import zlib
from pathlib import Path

from PIL import Image

# colours of stages/lib/drawing -> what the page has for them; style.css defines the variables
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#555555": "var(--quiet)",
    "#ffffff": "var(--paper)",
    "#0072b2": "var(--blue)",
    "#882255": "var(--wine)",
}
# all but white text, which is on a dark cell
COLOUR = re.compile(rf"""(?<!<g style="fill: )({"|".join(PAGE_COLOURS)})\b""")
BITMAP = re.compile(r'data:image/png;base64,([^"]+)"')
HEAD = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
# bitmaps of many cells, which the page shows smaller: without this, stripes would alias
SHARP = re.compile(r'(width="\d{3,}"[^>]*) style="image-rendering:[^"]*"')
SMALL = 4096  # characters; a bitmap below this size is not worth a second encoding


def picture(path: Path, width: int, quality: int, largest: float) -> str | None:
    """Return SVG text, or a WebP bitmap in base64; None if path.svg or path.png is missing.

    largest: size of the compressed vector file, in KiB, above which the page gets the bitmap;
    width: of the bitmap, at most, in pixels; quality: of bitmaps, also in vector files, 1 to 100.
    """
    vector, raster = path.with_suffix(".svg"), path.with_suffix(".png")
    if not (vector.exists() and raster.exists()):
        return None
    text = themed(vector.read_text(encoding="utf-8"), quality)
    if len(zlib.compress(text.encode(), 1)) <= largest * 1024:
        return text
    with Image.open(raster) as opened:
        image = opened.convert("RGB")
    if image.width > width:
        height = round(image.height * width / image.width)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    return base64.b64encode(_webp(image, quality)).decode()


def themed(text: str, quality: int) -> str:
    """Return a figure's SVG with the page's colours, smaller bitmaps and no head."""

    def smaller(match: re.Match) -> str:
        if len(match[1]) < SMALL:
            return match[0]
        raw = base64.b64decode(match[1])
        with Image.open(io.BytesIO(raw)) as opened:
            small = _webp(opened, quality)
        if len(small) >= len(raw):
            return match[0]
        return f'data:image/webp;base64,{base64.b64encode(small).decode()}"'

    text = HEAD.sub("", text).strip()
    text = COLOUR.sub(lambda match: PAGE_COLOURS[match[1]], text)
    return BITMAP.sub(smaller, SHARP.sub(r"\1", text))


def _webp(image: Image.Image, quality: int) -> bytes:
    small = io.BytesIO()
    image.save(small, "WEBP", quality=quality, method=4)
    return small.getvalue()
