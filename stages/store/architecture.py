"""Write down a model's numbers of layers, heads and neurons, so that queries can list them.

Table architecture: the sizes of a model, one row
    subject     VARCHAR  the model
    layers      INTEGER  number of decoder layers
    width       INTEGER  dimensions of the residual stream
    neurons     INTEGER  number of neurons per MLP
    heads       INTEGER  number of attention heads per layer
    head_width  INTEGER  dimensions of one head's output, before the attention's output projection
    vocabulary  INTEGER  number of tokens in the vocabulary
"""

import sys

import polars as pl

from stages.lib.core.tables import write_table
from stages.lib.model import checkpoint
from stages.lib.subject import Subject


def main(name: str) -> None:
    subject = Subject.named(name)
    a = checkpoint.from_settings(subject.settings).architecture
    sizes = {
        "layers": len(a.layers),
        "width": a.width,
        "neurons": a.neurons,
        "heads": a.heads,
        "head_width": a.head_width,
        "vocabulary": a.vocabulary,
    }
    row = pl.DataFrame(sizes, schema=dict.fromkeys(sizes, pl.Int32))
    table = row.select(pl.lit(subject.name).alias("subject"), pl.all())
    write_table(table, subject.path("store/architecture.parquet"))


if __name__ == "__main__":
    main(sys.argv[1])
