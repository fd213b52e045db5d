"""`dvc` that writes dvc.lock with libyaml, for projects made by tests: `python -m tests.quick_dvc repro` does what `dvc repro` does.

DVC takes dvc.lock apart and puts it together again after every stage, comments kept, in pure Python: 4 s of 5 at 230 stages of a
second each. A lock has no comments. Other tests run the real command on what this one has made.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from dvc import cli, dvcfile


class Dumper(yaml.CSafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


Dumper.add_representer(OrderedDict, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items()))


@contextmanager
def modify_yaml(path: str, fs: object = None) -> Iterator[dict]:
    """As dvc.utils.serialize.modify_yaml."""
    file = Path(path)
    data = (yaml.load(file.read_text(), yaml.CSafeLoader) if file.exists() else None) or {}
    yield data
    file.write_text(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True))


if __name__ == "__main__":
    dvcfile.modify_yaml = modify_yaml
    sys.exit(cli.main(sys.argv[1:]))
