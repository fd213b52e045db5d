"""What the page carries along, compact: tables and figures as JSON, all of it deflated and in base64."""

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
    """Bytes as they are, anything else as JSON; the page inflates it again (DecompressionStream "deflate")."""
    raw = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def tables(page: Contents, of: Database, subject: str | None, settings: Report) -> dict[str, Any]:
    """The rows of a subject's items, or of those that all subjects share, and where all are; null where a table is not there."""
    found, files = {}, places(page.tables(shared=subject is None), subject)
    for item in page.items():
        if item.table and item.shared == (subject is None):
            answer = ask(item, of, subject, settings.rows)
            found[item.id] = answer and {**packed(answer[0]), "found": answer[1], "file": files[item.table]}
    return found


def figures(page: Contents, settings: Report, subject: str | None = None, operators: Sequence[str] = ()) -> dict[str, str]:
    """Path below reports/, without ending -> what is drawn there; those that are not there are left out."""
    found = {}
    for pattern in page.pictures(shared=subject is None):
        for operator in operators or ("",):
            path = pattern.format(subject=subject, operator=operator)
            if path not in found and (drawn := picture(Path("reports") / path, settings.figure_width, settings.figure_quality)):
                found[path] = drawn
    return found
