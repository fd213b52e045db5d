"""Checks the whole of params.yaml, so that a wrong value stops the pipeline before its first stage, not hours later.

Writes data/settings.txt, always the same: stages that depend on it wait for the check without being rerun by it.
"""

from pathlib import Path

from stages.lib.params.sections import ParamsError, check, read
from stages.lib.params.whole import Params


def main() -> None:
    try:
        check(Params, read())
    except ParamsError as error:
        raise SystemExit(str(error)) from None
    Path("data").mkdir(exist_ok=True)
    Path("data/settings.txt").write_text("params.yaml holds only what is allowed\n")


if __name__ == "__main__":
    main()
