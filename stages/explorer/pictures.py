"""Save a figure with its query in the metadata, where any viewer of metadata can read it."""

import base64
import binascii
import io
import re
from urllib.parse import unquote
from xml.sax.saxutils import escape

from PIL import Image, PngImagePlugin

from stages.explorer.project import ExplorerError

LARGEST = 40 << 20  # bytes of a picture
FORMATS = ("svg", "png")
DUBLIN_CORE = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'


def saved(data: str, kind: str, query: str, page: str) -> bytes:
    """Return the file of a picture that the browser drew.

    data: a data URL; kind: svg or png; page: the address of the page. Raises ExplorerError if the
    data are not a picture.
    """
    head, _, body = data.partition(",")
    if len(data) > LARGEST or kind not in FORMATS or not head.startswith(f"data:image/{kind}"):
        fix = "press Save SVG or Save PNG below a figure."
        raise ExplorerError(f"this is not a picture of at most {LARGEST >> 20} MiB; {fix}")
    write = _png if kind == "png" else _svg
    try:
        if head.endswith("base64"):
            return write(base64.b64decode(body, validate=True), query, page)
        return write(unquote(body).encode(), query, page)
    except (binascii.Error, OSError, ValueError) as error:
        raise ExplorerError(f"this is not a picture that can be saved: {error}") from None


def _png(raw: bytes, query: str, page: str) -> bytes:
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt("Description", query)
    texts.add_itxt("Source", page)
    out = io.BytesIO()
    Image.open(io.BytesIO(raw), formats=["png"]).save(out, "png", pnginfo=texts)
    return out.getvalue()


def _svg(raw: bytes, query: str, page: str) -> bytes:
    start = re.match(rb"\s*<svg\b[^>]*>", raw)
    if not start:
        raise ValueError("it does not start with <svg")
    texts = _metadata("description", query) + _metadata("source", page)
    metadata = f"<metadata>{texts}</metadata>".encode()
    return raw[: start.end()] + metadata + raw[start.end() :]


def _metadata(name: str, text: str) -> str:
    return f"<dc:{name} {DUBLIN_CORE}>{escape(text)}</dc:{name}>"
