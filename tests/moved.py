"""Our own models behind other people's tokenizers: every chapter, on the micro grid, of numbers of several tokens.

`python -m tests.moved FOLDER` copies the project there with four subjects: the weights of a shipped model, each row of its vocabulary
moved to where the tokenizer has that token, and rows that it never learnt at random. `dvc repro --all-pipelines` there takes them through
every chapter, beside the micro project's own.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import vocabularies
from tests.micro import ROOT, SETTINGS, SHIPPED, copy_project

DIGITS, NUMBERS = "data/models/abacus-digits/step-06000", "data/models/abacus/step-06500"
SUBJECTS = {  # name: whose weights, tokenizer (tests/vocabularies.py), which of the answer's tokens is asked for
    "digits-moved": (DIGITS, "digits", 1),
    "llama-2-moved": (DIGITS, "llama-2", 0),
    "llama-3-moved": (NUMBERS, "llama-3", 0),
    "qwen-moved": (DIGITS, "qwen", 0),
}


def move(source: Path, kind: str, target: Path) -> None:
    """Writes the model of `source` behind a tokenizer of this kind."""
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
    model.config.vocab_size = len(own)
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = (
        own.bos_token_id,
        None,
        None,
    )
    model.generation_config = type(model.generation_config)()
    model.save_pretrained(target)
    own.save_pretrained(target)


def settings() -> dict[str, Any]:
    """Micro settings for these subjects, and the planted one, with which labels are calibrated."""
    common = SHIPPED["subjects"]["abacus"] | {
        "revision": "moved",
        "dtype": "float32",
        "operators": ["add", "subtract"],
    }
    subjects = {
        name: common
        | {
            "source": f"models/{name}",
            "bos": vocabularies.KINDS[kind]().bos_token is not None,
            "answer_token": token,
        }
        for name, (_, kind, token) in SUBJECTS.items()
    }
    chosen = {
        "default": next(iter(SUBJECTS)),
        "subjects": subjects,
        "sizes": {
            "abacus": {"single_heads": False, "single_units": False},
            **{name: {"single_units": False} for name in list(SUBJECTS)[1:]},
        },
    }
    found = dict(SETTINGS)
    for section, values in chosen.items():
        found[section] = (
            {**found.get(section, {}), **values} if isinstance(values, dict) else values
        )
    return found


def main(folder: Path) -> None:
    copy_project(folder, settings())
    for name, (source, kind, _) in SUBJECTS.items():
        move(ROOT / source, kind, folder / "models" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
