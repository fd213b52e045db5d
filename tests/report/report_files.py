"""The files below stages/ that stages read besides the modules they import: for tests/declared.py."""

from pathlib import Path

from stages.lib.dictionary import tables
from stages.report.page.contents import FOLDER, contents

STAGES = FOLDER.parents[1]


def read_by(stage: str) -> set[Path]:
    """The statements that claims are about; what the page is declared by, looks like and runs, and the stages whose tables it shows."""
    if stage in ("claims/claims", "claims/digit_claims", "claims/study_claims"):
        return set(STAGES.glob("*/claims.yaml"))
    if stage not in ("report", "report/study", "report/report_data"):
        return set()
    declared = {*STAGES.glob("*/page.yaml"), FOLDER / "contents.yaml"}
    if stage == "report/report_data":
        return declared
    known = tables(STAGES)
    page = contents() if stage == "report/study" else contents().only(study=False)
    shown = {known[item.table].path for item in page.items() if item.table in known}
    return declared | shown | {path for path in FOLDER.iterdir() if path.suffix in {".css", ".js", ".j2"}}
