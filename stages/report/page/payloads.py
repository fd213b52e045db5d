"""Pack what the page carries: tables and figures as JSON, deflated, in base64."""

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib.sql.database import Database
from stages.report.page.contents import Contents
from stages.report.page.pictures import picture
from stages.report.page.rows import ask, packed, places
from stages.report.settings import Report


def deflated(content: Any) -> str:
    """Return bytes, or anything else as JSON, deflated and in base64.

    The page inflates it with DecompressionStream("deflate").
    """
    raw = content
    if not isinstance(content, bytes):
        raw = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def tables(page: Contents, data: Database, subject: str | None, settings: Report) -> dict[str, Any]:
    """Return the rows of a model's items, or without a model of those that all models share.

    The result has, by item, the rows, how many there are and their file; None if there is no table.
    """
    shared = subject is None
    rows: dict[str, Any] = {}
    files = places(page.tables(shared), subject)
    for item in page.items():
        if not item.table or item.shared != shared:
            continue
        answer = ask(item, data, subject, settings.rows)
        rows[item.id] = None
        if answer:
            frame, counts = answer
            rows[item.id] = {**packed(frame), "found": counts, "file": files[item.table]}
    return rows


def figures(
    page: Contents,
    settings: Report,
    subject: str | None = None,
    operators: Sequence[str] = (),
) -> dict[str, str]:
    """Return the figures that exist: path below reports/, without ending -> picture."""
    drawn: dict[str, str] = {}
    for pattern in page.pictures(shared=subject is None):
        for operator in operators or ("",):
            path = pattern.format(subject=subject, operator=operator)
            if path not in drawn:
                file = Path("reports") / path
                content = picture(
                    file, settings.figure_width, settings.figure_quality, settings.figure_kib
                )
                if content:
                    drawn[path] = content
    return drawn
