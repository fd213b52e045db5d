"""Whether a model was trained here, as the table `origins` says (stages/subjects/origins.py)."""

from pathlib import Path

from stages.lib.core.tables import read_table

ORIGINS = Path("data/subjects/origins")


def trained_here(subject: str) -> bool:
    """Return whether this project trained a model, or planted it."""
    return bool(read_table(ORIGINS / f"{subject}.parquet")["trained_here"].item())
