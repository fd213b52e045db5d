"""Downloads a model of the Hugging Face Hub, at one commit, to data/models/<name>, with SHA256SUMS of its files (lib/hub.py).

An entry under `hub:` in stages/subjects/params.yaml says which; `bag add NAME org/name@commit` writes it.
"""

import sys
from pathlib import Path

from stages.lib import hub
from stages.subjects.settings import load_hub


def main(name: str) -> None:
    hub.download(load_hub(name), Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
