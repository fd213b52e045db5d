"""Convert a GGUF file to a safetensors folder, data/models/<name> (stages/lib/gguf).

An entry under `gguf:` in stages/subjects/params.yaml names the file; `bag add NAME x.gguf` writes
the entry.
"""

import sys
from pathlib import Path

from stages.lib.gguf import source
from stages.subjects.settings import load_gguf


def main(name: str) -> None:
    source.convert(Path(load_gguf(name).file), Path("data/models") / name)


if __name__ == "__main__":
    main(sys.argv[1])
