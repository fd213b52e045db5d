"""The files below stages/ that stages read besides the modules they import: for tests/declared.py."""

from pathlib import Path

from stages.lib.dictionary import tables
from stages.report.page.contents import FOLDER, contents

STAGES = FOLDER.parents[1]


def read_by(stage: str) -> set[Path]:
    """The statements that claims are about; what the page is declared by, looks like and runs, and the stages whose tables it shows."""
    if stage == "claims/claims":
        return set(STAGES.glob("*/claims.yaml"))
    if stage not in ("report", "report/study", "report/report_data"):
        return set()
    declared = {*STAGES.glob("*/page.yaml"), FOLDER / "contents.yaml"}
    if stage == "report/report_data":
        return declared
    known = tables(STAGES)
    shown = {known[item.table].path for item in contents().items() if item.table in known}
    return declared | shown | {path for path in FOLDER.iterdir() if path.suffix in {".css", ".js", ".j2"}}
