"""Write the page that people read: tables and figures, their queries, and neurons to browse.

`python -m stages.report.index SUBJECT [FILE]` writes the page of one model to reports/index.html or
to FILE. Without SUBJECT it writes reports/study.html, the page of all models, which also has the
tables and figures that compare models.

Both read data/report/<subject>.json, the tables and figures that all models share as
page/contents.yaml and every chapter's page.yaml list them, and the text of every stage whose table
is shown. Both are one file that needs no other. A page larger than report.largest_mib is an error.
"""

import json
import os
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

PARTS = Path("data/report")


def main(subject: str | None = None, file: str = "reports/index.html") -> None:
    """Write the page of a model to a file, or without one the page of all models.

    Ends the program if nothing was collected of the model.
    """
    parts = {path.stem: path for path in sorted(PARTS.glob("*.json"), key=lambda path: path.stem)}
    if subject is None:
        _write(Path("reports/study.html"), list(parts.values()), study=True)
    elif subject in parts:
        _write(Path(file), [parts[subject]], study=False)
    else:
        collected = ", ".join(parts) or "none"
        sys.exit(f"no page for {subject!r}: models with data in {PARTS}: {collected}")


def _write(file: Path, parts: list[Path], study: bool) -> None:
    """Write the page of models.

    parts: what was collected of each; study: whether the page has the tables and figures that
    compare models.
    """
    settings, declared = load(Report), contents()
    if not study:
        declared = declared.only(study=False)
    shared = database(declared.tables(shared=True))
    payloads = {
        "shared/tables": deflated(tables(declared, shared, None, settings)),
        "shared/figures": deflated(figures(declared, settings)),
    }
    subjects = []
    for path in parts:
        part = json.loads(path.read_text(encoding="utf-8"))
        subjects.append(part["about"])
        for name, text in part["payloads"].items():
            payloads[f"{part['about']['subject']}/{name}"] = text
    if study:
        for about in subjects:
            payloads[f"{about['subject']}/study"] = _compared(about, settings)
    root = Path(os.path.relpath(".", file.parent)).as_posix()
    text = bounded(page(declared, settings, subjects, payloads, root), settings, payloads)
    with replacing(file) as partial:
        partial.write_text(text, encoding="utf-8")


def _compared(about: dict[str, Any], settings: Report) -> str:
    """Return the tables and figures that compare a model with others."""
    page, subject = contents().only(study=True), about["subject"]
    data = database(page.tables(shared=False), subject)
    compared = {
        "tables": tables(page, data, subject, settings),
        "figures": figures(page, settings, subject, about["operators"]),
    }
    return deflated(compared)


if __name__ == "__main__":
    main(*sys.argv[1:])
