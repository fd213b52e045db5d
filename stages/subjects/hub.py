"""Download a model of the Hugging Face Hub at one commit to data/models/<name> (lib/hub.py).

The folder also gets SHA256SUMS of its files. An entry under `hub:` in stages/subjects/params.yaml
names repository and commit; `bag add NAME org/name@commit` writes the entry.
"""

import sys
from pathlib import Path

from stages.lib import hub
from stages.subjects.settings import load_hub


def main(name: str) -> None:
    hub.download(load_hub(name), Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
