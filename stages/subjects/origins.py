"""Write down which models this project trained, and which it took from elsewhere.

A model is trained here if its folder is one that `train` or `plant` writes. A fine-tuned model is
trained here if its source is. All other models are pretrained: those of `hub`, of `gguf`, and
folders that a user names. They never saw the project's grid and its invented facts, so their
accuracies have no train / held-out split, and their facts are real.

Each model has its own file, data/subjects/origins/<subject>.parquet, so that its stages do not
rerun when another model is added.

Table origins: where the weights of each model are from
    subject       VARCHAR  the model
    source        VARCHAR  folder of its weights
    trained_here  BOOLEAN  whether this project trained it from scratch or planted it, or fine-tuned
                           such a model; false for a pretrained model
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl

from stages.lib.core.settings import read
from stages.lib.core.tables import write_table
from stages.lib.origins import ORIGINS

PLANTED = "planted"


def main() -> None:
    trained = {*read()["train"], PLANTED}
    finetuned = {name: entry["source"] for name, entry in read()["finetune"].items()}
    for name, entry in read()["known"].items():
        source = entry["source"]
        row = {
            "subject": name,
            "source": source,
            "trained_here": began_here(source, trained, finetuned),
        }
        write_table(pl.DataFrame([row]), ORIGINS / f"{name}.parquet")


def began_here(source: str, trained: Collection[str], finetuned: Mapping[str, str]) -> bool:
    """Return whether the weights in a folder are those of a model trained here, or come from it.

    trained: names of the models made here from scratch; finetuned: name of a fine-tuned model ->
    its source.
    """
    for _ in finetuned:  # a model is fine-tuned at most so many times
        source = finetuned.get(_model(source), source)
    return _model(source) in trained


def _model(source: str) -> str:
    """Return NAME of data/models/NAME, or of a folder in it; empty for any other folder."""
    match Path(os.path.relpath(source)).parts:
        case ("data", "models", name, *_):
            return name
    return ""


if __name__ == "__main__":
    main()
