"""Writes the page that people read: every table and figure, the query behind it, and the neurons to look at.

Reads data/report/<subject>.json of all subjects, what stages/lib/report/contents.yaml names of the tables and figures that
subjects share, and the text of every stage whose table is shown; writes reports/index.html, one file that needs no other. A page
larger than report.largest_mib is an error.
"""

import json
from pathlib import Path

from stages.lib.files import replacing
from stages.lib.params.report import Report
from stages.lib.params.sections import load
from stages.lib.report.contents import contents
from stages.lib.report.page import bounded, page
from stages.lib.report.payloads import deflated, figures, tables
from stages.lib.report.rows import database


def main() -> None:
    declared, settings = contents(), load(Report)
    parts = [json.loads(path.read_text()) for path in sorted(Path("data/report").glob("*.json"), key=lambda path: path.stem)]
    shared = database(Path("data"), declared.tables(shared=True))
    payloads = {
        "shared/tables": deflated(tables(declared, shared, None, settings)),
        "shared/figures": deflated(figures(declared, settings)),
        **{f"{part['about']['subject']}/{name}": text for part in parts for name, text in part["payloads"].items()},
    }
    text = bounded(page(declared, settings, [part["about"] for part in parts], payloads), settings, payloads)
    with replacing(Path("reports/index.html")) as partial:
        partial.write_text(text)


if __name__ == "__main__":
    main()
