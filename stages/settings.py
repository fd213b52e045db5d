"""Checks the whole of params.yaml, so that a wrong value stops the pipeline before its first stage, not hours later.

Writes data/settings.txt, always the same: stages that depend on it wait for the check without being rerun by it.
"""

from pathlib import Path

from stages.lib.files import replacing
from stages.lib.params.sections import check, read
from stages.lib.params.whole import Params


def main() -> None:
    check(Params, read())
    with replacing(Path("data/settings.txt")) as partial:
        partial.write_text("params.yaml holds only what is allowed\n")


if __name__ == "__main__":
    main()
