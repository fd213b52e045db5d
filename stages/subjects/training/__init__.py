SPLITS = {"train": "train", "held_out": "held-out"}  # in logs, and in the corpus
