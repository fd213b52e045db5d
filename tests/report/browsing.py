"""The report page of the micro project, and a real Chromium that looks at it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.micro import ROOT, SETTINGS, SHIPPED, merged

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's packages chromium and chromium-driver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
REPORT = merged(SHIPPED["report"], SETTINGS["report"])  # settings of the micro project's page
WAIT = 120  # seconds, for a busy machine
CONTRASTS = """ // of every element with text of its own: how much it stands out (WCAG 2, 1.4.3), and which it is
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
      .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = rgba(getComputedStyle(at).backgroundColor);
        if (colour[3] === 255) return colour;
      }
      return [255, 255, 255, 255];
    };
    return [...document.querySelectorAll("body *")].filter((element) =>
      element.checkVisibility() && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
      .map((element) => {
        const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.tagName + "." + element.className + ": " + element.textContent.slice(0, 40)];
      });
"""


def project(micro: Path, folder: Path, **settings: Any) -> Path:
    """The micro project's data and figures behind links, with the code under test, so that the report's stages write into `folder`."""
    for name in ("data", "reports"):
        _linked(micro / name, folder / name, {"report", "index.html", "study.html"})
    _linked(ROOT / "stages", folder / "stages", {"params.yaml", "__pycache__"})
    (folder / "params.yaml").symlink_to((micro / "params.yaml").absolute())
    (folder / "stages/report/params.yaml").write_text(yaml.safe_dump({"report": REPORT | settings}, sort_keys=False))
    return folder


def _linked(source: Path, target: Path, left_out: set[str]) -> None:
    """Makes the folders of `source`, with a link to each file but those of these names, at `target`."""
    shutil.copytree(source.absolute(), target, ignore=shutil.ignore_patterns(*left_out), copy_function=os.symlink)


class Reader:
    """Someone at a browser who reads the page."""

    def __init__(self, driver: webdriver.Chrome, page: Path):
        self.driver, self.page = driver, page

    def open(self, width: int = 1280, height: int = 900, scheme: str = "light") -> "Reader":
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})
        self.driver.get(self.page.as_uri())
        self.until(lambda: self.shown() != "")
        return self

    def until(self, holds: Callable[[], bool]) -> None:
        """Look again and again, with a pause that leaves the processor to the browser."""
        wait = WebDriverWait(self.driver, WAIT, poll_frequency=0.05)
        wait.until(lambda _: holds(), "the page did not get there")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def shown(self) -> str:
        """The subject and operator that the page shows by now."""
        return self.run("return document.body.dataset.shown ?? ''")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector).strip()

    def choose(self, subject: str, operator: str = "") -> None:
        Select(self.find("#subject")).select_by_visible_text(subject)
        Select(self.find("#operator")).select_by_value(operator)
        self.until(lambda: self.shown() == f"{subject} {operator}".strip())

    def rows(self, place: str) -> list[dict[str, str]]:
        """All rows of the table within a place, page by page, by name of the column."""
        pages = []
        while True:
            pages += self.run(
                """const table = document.querySelector(arguments[0] + " table");
                const texts = (cells) => [...cells].map((cell) => cell.textContent);
                return [...(table?.tBodies[0].rows ?? [])].map((row) => [texts(table.tHead.rows[0].cells), texts(row.cells)]);""",
                place,
            )
            onwards = self.driver.find_elements(By.CSS_SELECTOR, f"{place} .pager button:nth-of-type(2)")
            if not onwards or onwards[0].get_attribute("aria-disabled") == "true":
                return [dict(zip(*row, strict=True)) for row in pages]
            self.run("arguments[0].click()", onwards[0])


@contextmanager
def reading(page: Path, profile: Path) -> Iterator[Reader]:
    """A reader with a browser of their own."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield Reader(driver, page)
    finally:
        driver.quit()


def table(page: Path, subject: str, name: str) -> pl.DataFrame:
    """A subject's own table, whichever chapter's."""
    [path] = (page.parents[1] / "data" / subject).glob(f"*/{name}.parquet")
    return pl.read_parquet(path)


def tells(cell: str, value: Any) -> bool:
    """Whether a cell of the page says this value of a table."""
    if value is None:
        return cell == "–"
    if isinstance(value, bool):
        return cell == ("yes" if value else "no")
    return float(cell) == float(f"{value:.4g}") if isinstance(value, float) else cell == str(value)


def compare(rows: list[dict[str, str]], expected: pl.DataFrame, columns: list[str] | None = None) -> None:
    """Asserts that rows of the page are those expected, in their order, in these columns or all."""
    assert len(rows) == expected.height > 0
    for row, known in zip(rows, expected.iter_rows(named=True), strict=True):
        assert list(row) == expected.columns
        for name in columns or expected.columns:
            assert tells(row[name], known[name]), (name, row, known)
