"""The files below stages/ that stages read besides the modules they import: for tests/declared.py."""

from pathlib import Path

from stages.lib.dictionary import tables
from stages.report.page.contents import FOLDER, contents

ROOT = Path(__file__).parents[1]


def read_by(stage: str) -> set[Path]:
    """The statements that claims are about; what the page is declared by, looks like and runs, and the stages whose tables it shows."""
    declaration = FOLDER / "contents.yaml"
    if stage == "claims":
        return {ROOT / "stages/lib/claims.yaml"}
    if stage != "report":
        return {declaration} if stage == "report_data" else set()
    known = tables(ROOT / "stages")
    shown = {known[item.table].stage for item in contents().items() if item.table in known}
    texts = {path for path in (ROOT / "stages").glob("*.*") if path.stem in shown and path.suffix in {".sql", ".py"}}
    return {declaration, *texts, *(path for path in FOLDER.iterdir() if path.suffix in {".css", ".js", ".j2"})}
