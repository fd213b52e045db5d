"""Run DVC, with quicker ways to write locks and to read settings: python quick_dvc.py repro

After each stage, DVC parses and writes the chapter's whole lock, with a parser that keeps comments.
For the locks of ten models this takes a second and more per stage. Here, only the entry of the
stage is replaced in the lock's text. The bytes are the same. DVC's own writer has the other cases:
a lock that does not look as DVC writes it, such as one with comments, and an entry with anchors,
which DVC numbers throughout the file.

For each stage, DVC also parses the files of settings that it names. Here, a text is parsed once.

`stages.warm` runs this file in place of the command `dvc`.
"""

import gc
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from dvc import dvcfile
from dvc.utils.serialize import _yaml as serialize
from dvc.utils.serialize import dumps_yaml, modify_yaml, parse_yaml

LOCK = re.compile(r"schema: .*\nstages:\n(?:  \S.*:\n(?:    .*\n)+)+")  # as DVC writes it
# a value that entries have several times is written once, after &id001, and then as *id001
ANCHOR = re.compile(r"[:-] [&*]id\d+( |$)", re.MULTILINE)


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
    before, after = dict(lock["stages"]), lock["stages"]
    yield lock
    changed = [name for name in before | after if after.get(name) is not before.get(name)]
    replaced = {name: (entry_in(text, name), written(name, after)) for name in changed}
    more = {key: value for key, value in lock.items() if key != "stages"}  # such as datasets
    has_anchors = any(ANCHOR.search(old + new) for old, new in replaced.values())
    if has_anchors or more.keys() != {"schema"}:
        with modify_yaml(path, fs=fs) as whole:
            whole.update(more)
            for name in before.keys() - after.keys():
                del whole["stages"][name]
            whole["stages"].update({name: after[name] for name in changed if name in after})
        return
    for old, new in replaced.values():
        text = text.replace(old, new) if old else text + new
    file.write_text(text, encoding="utf-8")


def entry_in(text: str, name: str) -> str:
    """Return the part of a lock's text that is a stage's entry, empty if it has none."""
    entry = re.search(rf"^  {re.escape(name)}:\n(    .*\n)+", text, re.MULTILINE)
    return entry[0] if entry else ""


def written(name: str, entries: dict[str, dict]) -> str:
    """Return the text of a stage's entry, empty if it has none."""
    if name not in entries:
        return ""
    return dumps_yaml({"stages": {name: entries[name]}}).removeprefix("stages:\n")


def parse(text: str, path: str, typ: str = "safe") -> Any:
    """Parse YAML in place of DVC's parse_yaml. The caller may change the result."""
    if typ != "safe":
        return parse_yaml(text, path, typ)
    if text not in _parsed:
        _parsed[text] = pickle.dumps(parse_yaml(text, path))
    return pickle.loads(_parsed[text])


_parsed: dict[str, bytes] = {}


if __name__ == "__main__":
    from dvc.cli import main

    sys.argv[0] = "dvc"  # DVC names its command where another one has to wait for it
    gc.set_threshold(50_000, 10, 10)  # DVC would spend a tenth of the time collecting garbage
    dvcfile.modify_yaml, serialize.parse_yaml = modify_lock, parse
    sys.exit(main(sys.argv[1:]))
