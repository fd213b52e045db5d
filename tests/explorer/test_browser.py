"""Go through the views in a real Chromium without a network, and compare them with SQL."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from stages.explorer.explore import served
from stages.explorer.pages import LISTED
from stages.explorer.project import Project
from stages.explorer.question import Question
from stages.explorer.views import neuron
from tests.micro import HALFWAY
from tests.report.browsing import CHROMIUM, CONTRASTS, DRIVER, FLAGS, WAIT, needs_chromium

pytestmark = needs_chromium
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost"
NEURON = {"subject": "abacus", "operator": "add", "layer": 1, "neuron": 7}
OF_NEURON = "where subject = 'abacus' and operator = 'add' and layer = 1 and neuron = 7"
ROWS = """
    const tables = [...document.querySelectorAll("table")];
    const table = tables.find((table) => table.ariaLabel.startsWith(arguments[0]));
    const texts = (row) => [...row.cells].map((cell) => cell.innerText);
    return table ? [...table.tBodies[0].rows].map(texts) : [];
"""
DRAWN = """
    const plot = document.querySelector(`#figure-${arguments[0]} .js-plotly-plot`);
    if (!plot?._fullData?.length) return null;
    const data = plot._fullData;
"""
CELLS = "[...data[0].z].map((row) => [...row]).flat()"
UNNAMED = """
    const kinds = ["button", "input", "textarea", "[role=region]", ".picture"];
    const selector = [...kinds.map((kind) => `main ${kind}`), "nav"].join(", ");
    const isNamed = (element) => element.innerText || element.ariaLabel || element.labels?.length
      || element.title || element.closest("label, [aria-label], .js-plotly-plot")
      || element.getAttribute("aria-labelledby");
    const unnamed = [...document.querySelectorAll(selector)].filter((element) => !isNamed(element));
    return unnamed.map((element) => element.outerHTML);
"""
COLOURS = "const { color, backgroundColor } = getComputedStyle(document.body);"


class Visitor:
    """A person who looks at the explorer in a browser."""

    def __init__(self, driver: webdriver.Chrome, address: str, downloads: Path, project: Project):
        self.driver, self.address = driver, address
        self.downloads, self.project = downloads, project

    def open(self, path: str, **fields: object) -> str:
        self.driver.get(self.address + path + Question(fields).search())
        return self.until(lambda: self.text("h1"))

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return what a condition returns, once it is true.

        The pauses leave the server time to load its model.
        """
        waiting = WebDriverWait(self.driver, WAIT, poll_frequency=0.05)
        try:
            return waiting.until(lambda _: condition())
        except TimeoutException:
            shown = self.text("main")[:500]
            raise AssertionError(f"the page did not get there; it shows: {shown}") from None

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return self.run(script, selector).strip()

    def waits_for(self, text: str, selector: str = "main") -> None:
        self.until(lambda: text in self.text(selector))

    def rows(self, caption: str) -> list[list[str]]:
        """Return the cells of the table whose caption starts with a text."""
        return self.until(lambda: self.run(ROWS, caption))

    def drawn(self, name: str, value: str) -> Any:
        """Return a value, in JavaScript, of a figure's data, once the figure is drawn."""
        return self.until(lambda: self.run(f"{DRAWN} return {value}", name))

    def ask(self, query: str, **parameters: Any) -> pl.DataFrame:
        return self.project.ask(query, **parameters)

    def fill(self, name: str, text: str) -> None:
        selector = f'[id=\'{{"field":"{name}"}}\']'
        field = self.driver.find_element(By.CSS_SELECTOR, selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text, Keys.ENTER)

    def press(self, **key: str) -> None:
        """Press the button with an id, as Dash writes it."""
        name = json.dumps(key, separators=(",", ":"), sort_keys=True)
        self.run("document.getElementById(arguments[0]).click()", name)

    def save(self, figure: str, kind: str) -> None:
        """Press the button that saves a figure. kind: png or svg."""
        script = "document.querySelector(`#figure-${arguments[0]} [data-save=${arguments[1]}]`)"
        self.run(f"{script}.click()", figure, kind)

    def file(self, name: str) -> Path:
        self.until((self.downloads / name).exists)
        return self.downloads / name


def options(profile: Path, downloads: Path) -> webdriver.ChromeOptions:
    """Return a browser's settings. profile, downloads: its folders."""
    result = webdriver.ChromeOptions()
    result.binary_location = str(CHROMIUM)
    for flag in [*FLAGS, OFFLINE, f"--user-data-dir={profile}", "--window-size=1280,900"]:
        result.add_argument(flag)
    preferences = {
        "download.default_directory": str(downloads),
        "profile.default_content_setting_values.automatic_downloads": 1,
    }
    result.add_experimental_option("prefs", preferences)
    result.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return result


@pytest.fixture(scope="module")
def visitor(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    downloads = tmp_path_factory.mktemp("downloads")
    settings = options(tmp_path_factory.mktemp("profile"), downloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(micro)
        project = Project()
        server = served(project, 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        driver = webdriver.Chrome(settings, webdriver.ChromeService(DRIVER))
        try:
            yield Visitor(driver, f"http://localhost:{server.port}/", downloads, project)
        finally:
            driver.quit()
            server.shutdown()
            thread.join()


def test_a_prompt_is_explained(visitor: Visitor):
    query = (
        "select op1, op2, predicted, answer_probability from predictions "
        "where subject = 'abacus' and operator = 'subtract' and correct order by op1 desc"
    )
    op1, op2, predicted, probability = visitor.ask(query).row(0)
    assert predicted == op1 - op2
    visitor.open("prompt", subject="abacus", prompt=f"{op1}-{op2}")
    visitor.waits_for("What heuristics add to the answer")
    answer, *others = visitor.rows("Predictions of abacus")
    assert answer[0] == str(predicted)
    assert others
    assert float(answer[3]) == pytest.approx(probability, rel=1e-3)
    values = visitor.drawn("contributions", "[...data[0].x]")
    caption = visitor.text("#figure-contributions figcaption")
    margin = float(re.search(r"They add up to ([-+.\d]+),", caption)[1])
    assert sum(values) == pytest.approx(margin, abs=0.01)
    visitor.fill("prompt", "3+9")
    visitor.waits_for("3 + 9 = 12", "h1")
    assert "prompt=3%2B9" in visitor.driver.current_url
    visitor.driver.back()
    visitor.waits_for(f"{op1} - {op2} = {predicted}", "h1")


def test_the_default_prompt_follows_the_model(visitor: Visitor):
    visitor.open("prompt", subject="abacus")
    visitor.waits_for("abacus", "h1")
    select = "dash_clientside.set_props({field: 'subject'}, {value: arguments[0]})"
    visitor.run(select, HALFWAY)
    visitor.waits_for(HALFWAY, "h1")
    assert f"subject={HALFWAY}" in visitor.driver.current_url
    assert "prompt=" not in visitor.driver.current_url


def test_neurons_are_ablated_on_a_prompt_and_over_the_grid(visitor: Visitor):
    visitor.open("silence", subject="abacus", prompt="3+9", neurons="1:7, 1:8")
    visitor.waits_for("Comparison with random neurons")
    rows = visitor.rows("Predictions")
    assert [row[0] for row in rows][:2] == ["nothing", "the selected neurons"]
    assert len(rows) == 7
    query = (
        "select answer_probability from predictions "
        "where subject = 'abacus' and operator = 'add' and op1 = 3 and op2 = 9"
    )
    assert float(rows[0][3]) == pytest.approx(visitor.ask(query).item(), rel=1e-3)
    visitor.run("document.querySelector('.ticks:last-of-type input').click()")
    visitor.waits_for("selected neurons:")
    broken = visitor.drawn("broken", CELLS).count(1)
    caption = visitor.text("#figure-broken figcaption")
    counts = re.search(r"([\d,]+) of ([\d,]+) cells break", caption).groups()
    query = "select count(result) from prompts where subject = 'abacus' and operator = 'add'"
    cells = visitor.ask(query).item()
    assert counts == (f"{broken:,}", f"{cells:,}")


def test_a_neuron_is_shown_as_it_is_in_the_tables(visitor: Visitor):
    visitor.open("neuron", **NEURON, map="activation")
    query = f"select activation from activations {OF_NEURON} order by op1, op2"
    shown = visitor.drawn("map", CELLS)
    assert shown == pytest.approx(visitor.ask(query)["activation"].to_list())
    query = (
        "select logit from value_logits where subject = 'abacus' and layer = 1 and neuron = 7 "
        "order by number"
    )
    shown = visitor.drawn("value-logits", "[...data[0].y]")
    assert shown == pytest.approx(visitor.ask(query)["logit"].to_list())
    query = f"select effect from neuron_effects {OF_NEURON} and method = 'exact'"
    rows = {row[0]: row for row in visitor.rows("Effect of patching")}
    assert float(rows["exact"][2]) == pytest.approx(visitor.ask(query).item(), rel=1e-3)
    for name in ("map-subtract", "map-multiply", "map-divide", "training"):
        assert visitor.drawn(name, "data[0].type") == "heatmap"
    visitor.fill("neuron", "x")
    visitor.waits_for("neuron is 'x'; it must be a whole number", ".alert")


def test_rows_are_those_of_the_query_and_can_be_saved(visitor: Visitor):
    query = (
        "select layer, neuron, rank from neuron_variances "
        "where subject = 'abacus' and operator = 'add' order by rank limit 7"
    )
    visitor.open("find", sql=query)
    rows = visitor.ask(query)
    assert visitor.rows("7 rows") == [list(map(str, row)) for row in rows.rows()]
    visitor.press(take="parquet")
    assert pl.read_parquet(visitor.file("bag.parquet")).equals(rows)
    visitor.press(take="csv")
    assert pl.read_csv(visitor.file("bag.csv")).rows() == rows.rows()
    visitor.run("document.querySelector('table a').click()")
    layer, neuron, _ = rows.row(0)
    visitor.waits_for(f"Neuron {neuron} of layer {layer}", "h1")


def test_a_query_runs_when_its_field_is_left(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    visitor.open("find", sql="select 1 as one")
    visitor.rows("1 row")
    query, started, page = "select 20 + 3 as sum", [], visitor.project.page

    def noted(text: str, *more: Any, **options: Any) -> tuple[pl.DataFrame, list[str]]:
        if query.startswith(text):  # pages before may still have work to do
            started.append(text)
        return page(text, *more, **options)

    monkeypatch.setattr(visitor.project, "page", noted)
    field = visitor.driver.find_element(By.TAG_NAME, "textarea")
    field.send_keys(Keys.CONTROL, "a")
    for letter in query:
        field.send_keys(letter)
        time.sleep(0.05)
    time.sleep(1)
    assert started == []
    field.send_keys(Keys.TAB)
    visitor.until(lambda: visitor.rows("1 row") == [["23"]])
    assert started == [query]
    assert field.get_property("value") == query
    visitor.driver.back()
    visitor.until(lambda: visitor.rows("1 row") == [["1"]])
    value = visitor.run("return document.querySelector('textarea').value")
    assert value == "select 1 as one"


def test_two_models_are_shown_side_by_side(visitor: Visitor):
    visitor.open("compare", **NEURON, other=HALFWAY)
    names = visitor.drawn("accuracy", "[...data[0].y]")
    query = (
        "select operator, count(*) filter (correct) / count(correct) from predictions "
        "where subject = $subject group by operator"
    )
    for trace, (side, subject) in enumerate((("left", "abacus"), ("right", HALFWAY))):
        known = dict(visitor.ask(query, subject=subject).rows())
        shown = visitor.drawn("accuracy", f"[...data[{trace}].x]")
        assert shown == pytest.approx([known[name] for name in names])
        values, _ = visitor.project.map(subject, "add", 1, 7)
        assert visitor.drawn(f"map-{side}", CELLS) == pytest.approx(values.ravel().tolist())


def test_a_figure_is_saved_as_shown_with_its_query(visitor: Visitor):
    visitor.open("neuron", **NEURON, map="activation")
    visitor.drawn("map", "true")
    visitor.save("map", "png")
    picture = Image.open(visitor.file("map.png"))
    assert min(picture.size) > 500
    assert visitor.ask(picture.text["Description"]).height == 400
    assert "neuron=7" in picture.text["Source"]
    visitor.save("map", "svg")
    text = visitor.file("map.svg").read_text()
    assert "<dc:description" in text
    assert "from activations" in text


def test_a_figure_that_appears_later_is_not_saved(
    visitor: Visitor,
    monkeypatch: pytest.MonkeyPatch,
):
    is_saved = threading.Event()
    make = neuron.LATER["evidence"]

    def evidence(*arguments: Any) -> Any:
        is_saved.wait(WAIT)
        return make(*arguments)

    monkeypatch.setitem(neuron.LATER, "evidence", evidence)
    for file in visitor.downloads.iterdir():
        file.unlink()
    visitor.open("neuron", **NEURON)
    visitor.drawn("map", "true")
    visitor.save("map", "png")
    visitor.file("map.png")
    is_saved.set()
    visitor.drawn("along", "true")
    visitor.save("along", "png")
    visitor.file("along.png")
    assert {file.name for file in visitor.downloads.iterdir()} == {"map.png", "along.png"}


def brightness(colour: str) -> int:
    """Return the sum of red, green and blue, 0 to 765."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def test_every_control_has_a_name(visitor: Visitor):
    current = "return document.querySelectorAll('nav [aria-current=page]').length"
    for path in ("prompt", "silence", "neuron", "find", "compare"):
        visitor.open(path)
        assert visitor.run(UNNAMED) == []
        assert visitor.run(current) == 1
        assert visitor.run("return document.documentElement.scrollWidth <= innerWidth"), path


def test_tables_fit_their_panels(visitor: Visitor):
    visitor.driver.set_window_size(1400, 900)
    wider = "table => table.scrollWidth > table.parentElement.clientWidth"
    texts = f"[...document.querySelectorAll('table')].filter({wider}).map(t => t.textContent)"
    for path in ("prompt", "silence", "neuron", "find", "compare"):
        visitor.open(path)
        assert visitor.run(f"return {texts}") == [], path
    visitor.driver.set_window_size(1280, 900)


def test_text_stands_out_in_light_and_dark(visitor: Visitor):
    for scheme, sign in (("light", 1), ("dark", -1)):
        preferred = {"name": "prefers-color-scheme", "value": scheme}
        emulated = {"features": [preferred]}
        visitor.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        for path in ("silence", "neuron", "find"):  # these have every kind of field
            visitor.open(path)
            contrasts = visitor.run(CONTRASTS)
            assert [name for contrast, name in contrasts if contrast < 4.5] == []
        ink, paper = visitor.run(f"{COLOURS} return [color, backgroundColor]")
        assert sign * (brightness(paper) - brightness(ink)) > 400


def test_nothing_was_loaded_from_elsewhere(visitor: Visitor):
    """This is the last test: the browser's logs also have the requests of tests before."""
    for view in LISTED:
        visitor.open(view.path)
    hosts = set()
    for entry in visitor.driver.get_log("performance"):
        if '"Network.requestWillBeSent"' in entry["message"]:
            hosts.update(re.findall(r'"url":"https?://([^/"]+)', entry["message"]))
    assert hosts == {visitor.address.split("/")[2]}
    errors = [entry for entry in visitor.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
