"""Add lines to a section of a YAML file as text, so that comments and order stay."""

import re
from pathlib import Path

from stages.lib.core.settings import ParamsError


def inserted(file: Path, added: dict[str, list[str]]) -> str:
    """Return a file's text with lines added after the last line of each section.

    added: section -> its new lines. Comments stay. Raises ParamsError if the file lacks a section.
    """
    text = file.read_text(encoding="utf-8")
    for section, lines in added.items():
        text = _inserted(file, text, section, lines)
    return text


def _inserted(file: Path, text: str, section: str, lines: list[str]) -> str:
    text = re.sub(rf"^({section}:(?: &\w+)?) \{{\}}", r"\1", text, flags=re.MULTILINE)
    match = re.search(rf"^{section}:.*\n(?:(?:[ #].*)?\n)*", text, re.MULTILINE)
    if match is None or re.match(rf"{section}: *(&\w+ *)?\{{", match[0]):
        raise ParamsError(
            f"{file} has no section `{section}:` with a line for each entry; write it so, or add "
            "the entry by hand"
        )
    end = match.start() + len(match[0].rstrip())
    return text[:end] + "\n" + "\n".join(lines) + text[end:]
