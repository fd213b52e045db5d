"""List the files below stages/ that stages read besides the modules they import.

tests/declared.py compares them with what each dvc.yaml declares.
"""

from pathlib import Path

from stages.lib.dictionary import tables
from stages.report.page.contents import FOLDER, contents

STAGES = FOLDER.parents[1]
CLAIMS = ("claims/claims", "claims/digit_claims", "claims/study_claims")
PAGES = ("report", "report/study", "report/report_data")


def read_by(stage: str) -> set[Path]:
    """Return the files that a stage reads: of claims their statements, of pages what they show.

    A page shows what page.yaml files declare, in its templates, style and scripts, and the stages
    that write its tables.
    """
    if stage in CLAIMS:
        return set(STAGES.glob("*/claims.yaml"))
    if stage not in PAGES:
        return set()
    declared = {*STAGES.glob("*/page.yaml"), FOLDER / "contents.yaml"}
    if stage == "report/report_data":
        return declared
    page = contents()
    if stage == "report":
        page = page.only(study=False)
    for ending in ("css", "js", "j2"):
        declared.update(FOLDER.glob(f"*.{ending}"))
    known = tables(STAGES)
    for item in page.items():
        if item.table in known:
            declared.add(known[item.table].path)
    return declared
