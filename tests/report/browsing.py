"""Build the report page of the micro project, and read it in a real Chromium."""

import math
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
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs Debian's packages chromium and chromium-driver",
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REPORT = merged(SHIPPED["report"], SETTINGS["report"])  # settings of the micro project's page
WAIT = 300  # seconds, for a busy machine
# returns, for each element with text of its own, its contrast (WCAG 2, 1.4.3) and its name
CONTRASTS = """
    const options = { willReadFrequently: true };
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", options);
    const known = new Map();
    const rgba = (colour) => {
      if (!known.has(colour)) known.set(colour, painted(colour));
      return known.get(colour);
    };
    const painted = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => {
      const [red, green, blue] = [r, g, b].map((part) => linear(part / 255));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const background = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = rgba(getComputedStyle(at).backgroundColor);
        if (colour[3] === 255) return colour;
      }
      return [255, 255, 255, 255];
    };
    const isText = (node) => node.nodeType === 3 && node.data.trim();
    const hasText = (element) => element.checkVisibility() && [...element.childNodes].some(isText);
    return [...document.querySelectorAll("body *")].filter(hasText).map((element) => {
      const ink = light(rgba(getComputedStyle(element).color));
      const paper = light(background(element));
      const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      const text = element.textContent.slice(0, 40);
      return [contrast, `${element.tagName}.${element.className}: ${text}`];
    });
"""
TABLE = """
    const table = document.querySelector(arguments[0] + " table");
    const texts = (cells) => [...cells].map((cell) => cell.textContent);
    const rows = [...(table?.tBodies[0].rows ?? [])];
    return rows.map((row) => [texts(table.tHead.rows[0].cells), texts(row.cells)]);
"""


def project(micro: Path, folder: Path, **settings: Any) -> Path:
    """Link the micro project's data and figures and the code under test in a folder; return it.

    So the report's stages write into the folder. settings: of the report.
    """
    for name in ("data", "reports"):
        _link(micro / name, folder / name, "report", "index.html", "study.html")
    _link(ROOT / "stages", folder / "stages", "params.yaml", "__pycache__")
    (folder / "params.yaml").symlink_to((micro / "params.yaml").absolute())
    text = yaml.safe_dump({"report": REPORT | settings}, sort_keys=False)
    (folder / "stages/report/params.yaml").write_text(text)
    return folder


def _link(source: Path, target: Path, *left_out: str) -> None:
    """Copy the folders of `source`, with a link to each file, without files of some names."""
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(source.absolute(), target, ignore=ignored, copy_function=os.symlink)


class Reader:
    """A person who reads the page in a browser."""

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

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the pauses leave the processor to the browser."""
        wait = WebDriverWait(self.driver, WAIT, poll_frequency=0.05)
        wait.until(lambda _: condition(), "the page did not get there")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def shown(self) -> str:
        """Return the model and the operator that the page shows."""
        return self.run("return document.body.dataset.shown ?? ''")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0]).textContent"
        return self.run(script, selector).strip()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.run(script, selector)

    def draw(self, item: str) -> None:
        """Scroll to an item, so that its first figure is drawn."""
        self.run("document.querySelector(arguments[0]).scrollIntoView()", f"{item} .vector")
        drawn = f"return Boolean(document.querySelector('{item} .vector').shadowRoot)"
        self.until(lambda: self.run(drawn))

    def select(self, subject: str, operator: str = "") -> None:
        Select(self.find("#subject")).select_by_visible_text(subject)
        Select(self.find("#operator")).select_by_value(operator)
        self.until(lambda: self.shown() == f"{subject} {operator}".strip())

    def rows(self, place: str) -> list[dict[str, str]]:
        """Return all rows of the table in a place, page by page: column -> text."""
        rows = self.run(TABLE, place)
        forward = f"{place} .pager button:nth-of-type(2):not([aria-disabled=true])"
        while buttons := self.driver.find_elements(By.CSS_SELECTOR, forward):
            self.run("arguments[0].click()", buttons[0])
            rows += self.run(TABLE, place)
        return [dict(zip(*row, strict=True)) for row in rows]


@contextmanager
def reading(page: Path, profile: Path) -> Iterator[Reader]:
    """Open a browser, and return its reader."""
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
    """Return a model's own table, of whichever chapter."""
    [path] = (page.parents[1] / "data" / subject).glob(f"*/{name}.parquet")
    return pl.read_parquet(path)


def tells(cell: str, value: Any) -> bool:
    """Return whether a cell of the page has this value of a table."""
    if value is None:
        return cell == "–"
    if isinstance(value, bool):
        return cell == ("yes" if value else "no")
    if isinstance(value, float):  # three digits
        return math.isclose(float(cell), value, rel_tol=0.0051, abs_tol=1e-12)
    return cell == str(value)


def compare(rows: list[dict[str, str]], expected: pl.DataFrame) -> None:
    """Assert that rows of the page are the expected rows, in their order."""
    assert len(rows) == expected.height > 0
    for row, known in zip(rows, expected.iter_rows(named=True), strict=True):
        assert list(row) == expected.columns
        for name, value in known.items():
            assert tells(row[name], value), (name, row, known)
