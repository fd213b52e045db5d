"""Run DVC, with a quicker way to write locks: python quick_dvc.py repro

After each stage, DVC parses and writes the chapter's whole lock, with a parser that keeps comments.
For the locks of ten models this takes a second and more per stage. Here, only the entry of the
stage is replaced in the lock's text. The bytes are the same. A lock that does not look as DVC
writes it, such as one with comments, is left to DVC.

`stages.warm` runs this file in place of the command `dvc`.
"""

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from dvc import dvcfile
from dvc.utils.serialize import dumps_yaml, modify_yaml

LOCK = re.compile(r"schema: .*\nstages:\n(?:  \S.*:\n(?:    .*\n)+)+")  # as DVC writes it


@contextmanager
def modify_lock(path: str, fs: object = None) -> Iterator[dict]:
    """Yield a lock's content, and write the stages whose entries are new or gone afterwards.

    It takes the place of dvc.utils.serialize.modify_yaml, which DVC uses for other files, too.
    """
    file = Path(path)
    is_lock = file.name == dvcfile.LOCK_FILE and file.exists()
    text = file.read_text(encoding="utf-8") if is_lock else ""
    if not LOCK.fullmatch(text):
        with modify_yaml(path, fs=fs) as whole:
            yield whole
        return
    lock = yaml.load(text, yaml.CSafeLoader)
    before = dict(lock["stages"])
    yield lock
    after = lock["stages"]
    for name in before | after:
        if after.get(name) is not before.get(name):
            text = with_entry(text, name, after.get(name))
    file.write_text(text, encoding="utf-8")


def with_entry(text: str, name: str, entry: dict | None) -> str:
    """Return the text of a lock with this entry of a stage, in its place or at the end.

    None removes the stage.
    """
    new = dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n") if entry else ""
    old = re.search(rf"^  {re.escape(name)}:\n(    .*\n)*", text, re.MULTILINE)
    if not old:
        return text + new
    return text[: old.start()] + new + text[old.end() :]


if __name__ == "__main__":
    from dvc.cli import main

    sys.argv[0] = "dvc"  # DVC names its command where another one has to wait for it
    gc.set_threshold(50_000, 10, 10)  # DVC would spend a tenth of the time collecting garbage
    dvcfile.modify_yaml = modify_lock
    sys.exit(main(sys.argv[1:]))
