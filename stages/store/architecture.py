"""Finds a subject's layers, heads and neurons, so that queries can name every one of them.

Table architecture: a subject's sizes, one row
    subject     VARCHAR   the model
    layers      INTEGER   decoder layers
    width       INTEGER   of the residual stream
    neurons     INTEGER   per MLP
    heads       INTEGER   attention heads per layer
    head_width  INTEGER   of one head's output, before the attention's output projection
    vocabulary  INTEGER   tokens
"""

import sys

import polars as pl

from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint
from stages.lib.subject import Subject


def main(name: str) -> None:
    subject = Subject.named(name)
    loaded = checkpoint.of(subject.settings)
    a = loaded.architecture
    row = {
        "layers": len(a.layers), "width": a.width, "neurons": a.neurons, "heads": a.heads, "head_width": a.head_width,
        "vocabulary": a.vocabulary,
    }  # fmt: skip
    columns = [pl.lit(value, pl.Int32).alias(size) for size, value in row.items()]
    write_table(
        pl.select(pl.lit(subject.name).alias("subject"), *columns),
        subject.path("store/architecture.parquet"),
    )


if __name__ == "__main__":
    main(sys.argv[1])
