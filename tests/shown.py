"""Read the tables and numbers that a page shows, and compare them with values."""

import re

NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?(?!\w)")


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as it shows them, such as 1,024 or −0.46."""
    return [number.rstrip(",") for number in NUMBER.findall(text)]


def is_rounded(shown: str, value: float) -> bool:
    """Return whether a number, as a page shows it, is a value rounded to the digits shown.

    A whole number must be shown without a point, and any other number with one.
    """
    text = shown.replace(",", "").replace("−", "-")
    decimals = len(text.partition(".")[2])
    if isinstance(value, int) == bool(decimals):
        return False
    return abs(float(text) - value) <= 0.5 * 10**-decimals + 1e-9


def lacking(text: str, values: list[float]) -> list[float]:
    """Return the values that none of a text's numbers shows."""
    shown = numbers(text)
    return [value for value in values if not any(is_rounded(number, value) for number in shown)]


def rows(page: str, header: str) -> list[list[str]]:
    """Return the rows, without the header, of the one table of a page whose header begins so."""
    [table] = re.findall(rf"^\| {re.escape(header)}.*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    return [[cell.strip() for cell in cells] for cells in lines]


def item(page: str, word: str) -> str:
    """Return the one item of the lists of a page whose bold beginning has a word."""
    items = re.split(r"\n(?=\* |\n)", page)
    [only] = [text for text in items if re.match(rf"\* \*\*[^*]*{word}", text, re.IGNORECASE)]
    return only
