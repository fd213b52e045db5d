"""Train language models to the same bytes every time, and resume interrupted runs."""

SPLITS = {"train": "train", "held_out": "held-out"}  # columns of logs -> splits of the corpus
