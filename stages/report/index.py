"""Writes the page that people read: every table and figure, the query behind it, and the neurons to look at.

`python -m stages.report.index SUBJECT [FILE]` writes the page of one subject to reports/index.html or to FILE. Without SUBJECT it
writes reports/study.html, the page of all, which also has the tables and figures that compare subjects. Either reads
data/report/<subject>.json, what page/contents.yaml and every chapter's page.yaml name of the tables and figures that subjects share,
and the text of every stage whose table is shown; either is one file that needs no other. A page larger than report.largest_mib is an
error.
"""

import json
import sys
from pathlib import Path
from typing import Any

from stages.lib.core.files import replacing
from stages.lib.core.settings import load
from stages.report.page.contents import contents
from stages.report.page.html import bounded, page
from stages.report.page.payloads import deflated, figures, tables
from stages.report.page.rows import database
from stages.report.settings import Report


def main(subject: str | None = None, file: str = "reports/index.html") -> None:
    settings, study = load(Report), subject is None
    declared = contents() if study else contents().only(study=False)
    files = sorted(Path("data/report").glob(f"{subject or '*'}.json"), key=lambda file: file.stem)
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    shared = database(declared.tables(shared=True))
    payloads = {
        "shared/tables": deflated(tables(declared, shared, None, settings)),
        "shared/figures": deflated(figures(declared, settings)),
        **{f"{part['about']['subject']}/{name}": text for part in parts for name, text in part["payloads"].items()},
        **{f"{about['subject']}/study": _compared(about, settings) for about in (part["about"] for part in parts) if study},
    }
    text = bounded(page(declared, settings, [part["about"] for part in parts], payloads), settings, payloads)
    with replacing(Path("reports/study.html" if study else file)) as partial:
        partial.write_text(text, encoding="utf-8")


def _compared(about: dict[str, Any], settings: Report) -> str:
    """Tables and figures that compare a subject with others."""
    page, subject = contents().only(study=True), about["subject"]
    of = database(page.tables(shared=False), subject)
    found = {"tables": tables(page, of, subject, settings), "figures": figures(page, settings, subject, about["operators"])}
    return deflated(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
