"""Run our own models with other tokenizers: every chapter, on the micro grid.

`python -m tests.moved FOLDER` copies the project to a folder, with four models. Each has the
weights of a shipped model, whose rows of the vocabulary are moved to the tokenizer's ids; rows of
unknown tokens are random. `dvc repro --all-pipelines` in the folder takes these models through
every chapter, in addition to the micro project's models.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import vocabularies
from tests.micro import ROOT, SETTINGS, SHIPPED, copy_project

DIGITS, NUMBERS = "data/models/abacus-digits/step-06000", "data/models/abacus/step-06500"


@dataclass(frozen=True)
class Moved:
    """A model with another tokenizer.

    source: folder of its weights; kind: of tests/vocabularies.py; answer_token: of the answer's
    tokens, the one that is predicted, from 0.
    """

    source: str
    kind: str
    answer_token: int


SUBJECTS = {
    "digits-moved": Moved(DIGITS, "digits", 1),
    "llama-2-moved": Moved(DIGITS, "llama-2", 0),
    "llama-3-moved": Moved(NUMBERS, "llama-3", 0),
    "qwen-moved": Moved(DIGITS, "qwen", 0),
}


def move(source: Path, kind: str, target: Path) -> None:
    """Write the model of `source` with a tokenizer of this kind."""
    theirs, own = AutoTokenizer.from_pretrained(source), vocabularies.KINDS[kind]()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    known = theirs.get_vocab() | {own.bos_token or "": theirs.bos_token_id}
    torch.manual_seed(0)
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        rows = torch.randn(len(own), table.weight.shape[1]) * table.weight.std()
        for token, number in own.get_vocab().items():
            if token in known:
                rows[number] = table.weight.data[known[token]]
        table.weight = torch.nn.Parameter(rows)
    config = model.config
    config.vocab_size = len(own)
    config.bos_token_id, config.eos_token_id = own.bos_token_id, None
    config.pad_token_id = None
    model.generation_config = type(model.generation_config)()
    model.save_pretrained(target)
    own.save_pretrained(target)


def settings() -> dict[str, Any]:
    """Return micro settings for these models, and the synthetic one that calibrates labels."""
    common = {"revision": "moved", "dtype": "float32", "operators": ["add", "subtract"]}
    subjects, sizes = {}, {}
    for name, moved in SUBJECTS.items():
        own = {
            "source": f"models/{name}",
            "bos": vocabularies.KINDS[moved.kind]().bos_token is not None,
            "answer_token": moved.answer_token,
        }
        subjects[name] = SHIPPED["subjects"]["abacus"] | common | own
        sizes[name] = {"single_units": False}
    default = next(iter(SUBJECTS))
    del sizes[default]
    sizes["abacus"] = {"single_heads": False, "single_units": False}
    return SETTINGS | {
        "default": default,
        "subjects": SETTINGS["subjects"] | subjects,
        "sizes": SETTINGS["sizes"] | sizes,
    }


def main(folder: Path) -> None:
    """Copy the project, and write the models into it."""
    copy_project(folder, settings())
    for name, moved in SUBJECTS.items():
        move(ROOT / moved.source, moved.kind, folder / "models" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
