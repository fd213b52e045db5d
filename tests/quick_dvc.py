"""DVC that writes a stage's entry of a lock without parsing and writing all others anew.

After each stage, DVC rewrites the chapter's whole lock with a parser that keeps comments, which
takes half of the micro project's time. `python tests/quick_dvc.py repro` does what `dvc repro` does
and writes the same bytes. Only the tests' own project is made with it.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from dvc import cli, dvcfile
from dvc.utils.serialize import dumps_yaml

PARTS = {"schema", "stages"}  # of a lock


@contextmanager
def modify_lock(path: str, fs: object = None) -> Iterator[dict]:
    """Yield a lock's content, and write the stages that have new entries afterwards.

    It takes the place of dvc.utils.serialize.modify_yaml.
    """
    file = Path(path)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lock = yaml.load(text, yaml.CSafeLoader) or {}
    before = dict(lock.get("stages", {}))
    yield lock
    if not lock.keys() <= PARTS:
        raise NotImplementedError(f"{file} has more than {PARTS}: use dvc")
    if not before:
        text = dumps_yaml(lock)
    else:
        for name, entry in lock["stages"].items():
            if entry is not before.get(name):
                text = with_entry(text, name, entry)
    file.write_text(text, encoding="utf-8")


def with_entry(text: str, name: str, entry: dict) -> str:
    """Return the text of a lock with this entry of a stage, in its place or at the end."""
    new = dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")
    old = re.search(rf"^  {re.escape(name)}:\n(    .*\n)*", text, re.MULTILINE)
    if not old:
        return text + new
    return text[: old.start()] + new + text[old.end() :]


if __name__ == "__main__":
    dvcfile.modify_yaml = modify_lock
    sys.exit(cli.main(sys.argv[1:]))
