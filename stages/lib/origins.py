"""Read whether this project trained a model, from the table of stages/subjects/origins.py."""

from pathlib import Path

from stages.lib.core.tables import read_table

ORIGINS = Path("data/subjects/origins")


def trained_here(subject: str) -> bool:
    """Return whether this project made a model, by training or by setting its weights."""
    return bool(read_table(ORIGINS / f"{subject}.parquet")["trained_here"].item())
