"""A figure saved with the query that it shows, in its metadata: any viewer of metadata reads it back."""

import base64
import binascii
import io
import re
from urllib.parse import unquote
from xml.sax.saxutils import escape

from PIL import Image, PngImagePlugin

from stages.explorer.project import ExplorerError

LARGEST = 40 << 20  # bytes of a picture


def saved(data: str, kind: str, query: str, page: str) -> bytes:
    """The file of a picture that the browser drew. data: a data URL; kind: svg or png. Raises ExplorerError where it is none."""
    head, _, body = data.partition(",")
    if len(data) > LARGEST or kind not in ("svg", "png") or not head.startswith(f"data:image/{kind}"):
        raise ExplorerError("this is no picture that can be saved; press Save SVG or Save PNG below a figure.")
    try:
        raw = base64.b64decode(body, validate=True) if head.endswith("base64") else unquote(body).encode()
        return _png(raw, query, page) if kind == "png" else _svg(raw, query, page)
    except (binascii.Error, OSError, ValueError) as error:
        raise ExplorerError(f"this is no picture that can be saved: {error}") from None


def _png(raw: bytes, query: str, page: str) -> bytes:
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt("Description", query)
    texts.add_itxt("Source", page)
    out = io.BytesIO()
    Image.open(io.BytesIO(raw), formats=["png"]).save(out, "png", pnginfo=texts)
    return out.getvalue()


def _svg(raw: bytes, query: str, page: str) -> bytes:
    front = re.match(rb"\s*<svg\b[^>]*>", raw)
    if not front:
        raise ValueError("it does not start as an SVG does")
    texts = "".join(
        f'<dc:{name} xmlns:dc="http://purl.org/dc/elements/1.1/">{escape(text)}</dc:{name}>'
        for name, text in (("description", query), ("source", page))
    )
    return raw[: front.end()] + f"<metadata>{texts}</metadata>".encode() + raw[front.end() :]
