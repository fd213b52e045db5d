"""Someone at a real Chromium, without any network but this machine, goes through the six; what is seen is held against SQL."""

import re
import threading
import time
from collections.abc import Iterator
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
from stages.explorer.project import Project
from stages.explorer.question import Question
from tests.micro import HALFWAY
from tests.report.browsing import CHROMIUM, CONTRASTS, DRIVER, FLAGS, WAIT, needs_chromium

pytestmark = needs_chromium
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost"


class Visitor:
    """Someone who looks at the explorer."""

    def __init__(self, driver: webdriver.Chrome, address: str, downloads: Path, project: Project):
        self.driver, self.address, self.downloads, self.project = driver, address, downloads, project

    def open(self, path: str, **fields: object) -> str:
        self.driver.get(self.address + path + Question(fields).search())
        return self.until(lambda: self.text("h1"))

    def until(self, holds):
        """What `holds` returns, once it is true. Asked without a pause it would leave the server no time to load its model."""
        try:
            return WebDriverWait(self.driver, WAIT, poll_frequency=0.05).until(lambda _: holds())
        except TimeoutException:
            raise AssertionError(f"the page did not get there; it says: {self.text('main')[:500]}") from None

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector).strip()

    def waits_for(self, text: str, selector: str = "main") -> None:
        self.until(lambda: text in self.text(selector))

    def rows(self, caption: str) -> list[list[str]]:
        """The cells of the table whose caption starts so."""
        script = """return [...document.querySelectorAll("table")].filter((one) => one.ariaLabel.startsWith(arguments[0])).slice(0, 1)
            .flatMap((one) => [...one.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText)))"""
        return self.until(lambda: self.run(script, caption))

    def drawn(self, name: str, script: str):
        """Something of a figure's data, once it is drawn."""
        ready = "const plot = document.querySelector('#figure-' + arguments[0] + ' .js-plotly-plot'); if (!plot?._fullData?.length) return null;"
        return self.until(lambda: self.run(f"{ready} const data = plot._fullData; return {script}", name))

    def fill(self, name: str, text: str) -> None:
        field = self.driver.find_element(By.CSS_SELECTOR, f'[id=\'{{"field":"{name}"}}\']')
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text, Keys.ENTER)

    def press(self, key: str, value: str, **more: str) -> None:
        named = ",".join(f'"{name}":"{text}"' for name, text in sorted({key: value, **more}.items()))
        self.run("document.getElementById(arguments[0]).click()", "{" + named + "}")

    def file(self, name: str) -> Path:
        self.until((self.downloads / name).exists)
        return self.downloads / name


@pytest.fixture(scope="module")
def visitor(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    options = webdriver.ChromeOptions()
    options.binary_location, downloads = str(CHROMIUM), tmp_path_factory.mktemp("downloads")
    for flag in [*FLAGS, OFFLINE, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,900"]:
        options.add_argument(flag)
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(downloads), "profile.default_content_setting_values.automatic_downloads": 1}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(micro)
        project = Project()
        server = served(project, 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            yield Visitor(driver, f"http://localhost:{server.port}/", downloads, project)
        finally:
            driver.quit()
            server.shutdown()
            thread.join()


def test_a_prompt_is_explained(visitor: Visitor):
    visitor.open("prompt", subject="abacus", prompt="14-4")
    visitor.waits_for("What heuristics add to the answer")
    query = (
        "select predicted, answer_probability from predictions where subject = 'abacus' and operator = 'subtract' and op1 = 14 and op2 = 4"
    )
    predicted, probability = visitor.project.ask(query).row(0)
    answers = {row[0]: row for row in visitor.rows("Predictions of abacus")}
    assert next(iter(answers)) == ("–" if predicted is None else str(predicted))
    if "10" in answers:
        assert float(answers["10"][3]) == pytest.approx(probability, rel=1e-3)
    values = visitor.drawn("contributions", "[...data[0].x]")
    margin = float(re.search(r"They add up to ([-+.\d]+),", visitor.text("#figure-contributions figcaption"))[1])
    assert sum(values) == pytest.approx(margin, abs=0.01)
    visitor.fill("prompt", "3+9")
    visitor.waits_for("3 + 9 = 12", "h1")
    assert "prompt=3%2B9" in visitor.driver.current_url
    visitor.driver.back()
    visitor.waits_for("14 - 4 = 10", "h1")


def test_a_prompt_that_nobody_chose_follows_the_subject(visitor: Visitor):
    visitor.open("prompt", subject="abacus")
    visitor.waits_for("abacus", "h1")
    visitor.run("dash_clientside.set_props({field: 'subject'}, {value: arguments[0]})", HALFWAY)
    visitor.waits_for(HALFWAY, "h1")
    assert f"subject={HALFWAY}" in visitor.driver.current_url
    assert "prompt=" not in visitor.driver.current_url


def test_neurons_are_silenced_on_a_prompt_and_over_the_grid(visitor: Visitor):
    visitor.open("silence", subject="abacus", prompt="3+9", neurons="1:7, 1:8")
    visitor.waits_for("Beside random neurons")
    told = visitor.rows("Predictions")
    assert [row[0] for row in told][:2] == ["nothing", "the selected neurons"]
    assert len(told) == 7
    query = "select answer_probability from predictions where subject = 'abacus' and operator = 'add' and op1 = 3 and op2 = 9"
    assert float(told[0][3]) == pytest.approx(visitor.project.ask(query).item(), rel=1e-3)
    visitor.run("document.querySelector('.ticks:last-of-type input').click()")
    visitor.waits_for("selected neurons:")
    broken = visitor.drawn("broken", "data[0].z.map((row) => [...row]).flat().filter((one) => one === 1).length + 1") - 1
    words = re.search(r"([\d,]+) of ([\d,]+) cells break", visitor.text("#figure-broken figcaption"))
    cells = visitor.project.ask("select count(result) from prompts where subject = 'abacus' and operator = 'add'").item()
    assert (int(words[1].replace(",", "")), int(words[2].replace(",", ""))) == (broken, cells)


def test_a_neuron_is_shown_as_it_is_in_the_tables(visitor: Visitor):
    visitor.open("neuron", subject="abacus", operator="add", layer=1, neuron=7, map="activation")
    rows = visitor.project.ask(
        "select activation from activations where subject = 'abacus' and operator = 'add' and layer = 1 and neuron = 7 order by op1, op2"
    )
    shown = visitor.drawn("map", "[...data[0].z].map((row) => [...row]).flat()")
    assert shown == pytest.approx(rows["activation"].to_list())
    logits = visitor.project.ask("select logit from value_logits where subject = 'abacus' and layer = 1 and neuron = 7 order by number")
    assert visitor.drawn("value-logits", "[...data[0].y]") == pytest.approx(logits["logit"].to_list())
    effect = (
        "select effect from neuron_effects where subject = 'abacus' and operator = 'add' and layer = 1 and neuron = 7 and method = 'exact'"
    )
    exact = next(row for row in visitor.rows("Effect of patching its counterfactual value") if row[0] == "exact")
    assert float(exact[2]) == pytest.approx(visitor.project.ask(effect).item(), rel=1e-3)
    assert {visitor.drawn(f"map-{operator}", "data[0].type") for operator in ("subtract", "multiply", "divide")} == {"heatmap"}
    assert visitor.drawn("training", "data[0].type") == "heatmap"
    visitor.fill("neuron", "x")
    visitor.waits_for("neuron is 'x'; it must be a whole number", ".alert")


def test_what_is_found_is_what_sql_finds_and_can_be_taken_along(visitor: Visitor):
    query = "select layer, neuron, rank from neuron_variances where subject = 'abacus' and operator = 'add' order by rank limit 7"
    visitor.open("find", sql=query)
    rows = visitor.project.ask(query)
    assert [[int(cell) for cell in row] for row in visitor.rows("7 rows")] == [list(row) for row in rows.rows()]
    visitor.press("take", "parquet")
    assert pl.read_parquet(visitor.file("bag.parquet")).equals(rows)
    visitor.press("take", "csv")
    assert pl.read_csv(visitor.file("bag.csv")).rows() == rows.rows()
    visitor.run("document.querySelector('table a').click()")
    layer, neuron, _ = rows.row(0)
    visitor.waits_for(f"Neuron {neuron} of layer {layer}", "h1")


def test_a_query_is_asked_when_its_field_is_left(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    visitor.open("find", sql="select 1 as one")
    visitor.rows("1 row")
    query, asked, page = "select 20 + 3 as sum", [], visitor.project.page

    def noted(text: str, *more: Any, **given: Any) -> tuple[pl.DataFrame, list[str]]:
        if query.startswith(text):  # pages before may still have work to do
            asked.append(text)
        return page(text, *more, **given)

    monkeypatch.setattr(visitor.project, "page", noted)
    field = visitor.driver.find_element(By.TAG_NAME, "textarea")
    field.send_keys(Keys.CONTROL, "a")
    for letter in query:
        field.send_keys(letter)
        time.sleep(0.05)
    time.sleep(1)
    assert asked == []
    field.send_keys(Keys.TAB)
    visitor.until(lambda: visitor.rows("1 row") == [["23"]])
    assert asked == [query]
    assert field.get_property("value") == query
    visitor.driver.back()
    visitor.until(lambda: visitor.rows("1 row") == [["1"]])
    assert visitor.run("return document.querySelector('textarea').value") == "select 1 as one"


def test_two_subjects_stand_side_by_side(visitor: Visitor):
    visitor.open("compare", subject="abacus", other="abacus-step-00100", operator="add", layer=1, neuron=7)
    names = visitor.drawn("accuracy", "[...data[0].y]")
    for trace, subject in enumerate(("abacus", "abacus-step-00100")):
        query = "select operator, count(*) filter (correct) / count(correct) from predictions where subject = $subject group by operator"
        known = dict(visitor.project.ask(query, subject=subject).rows())
        assert visitor.drawn("accuracy", f"[...data[{trace}].x]") == pytest.approx([known[name] for name in names])
        side = ("left", "right")[trace]
        shown = visitor.drawn(f"map-{side}", "[...data[0].z].map((row) => [...row]).flat()")
        assert shown == pytest.approx(visitor.project.map(subject, "add", 1, 7)[0].ravel().tolist())


def test_a_figure_is_saved_as_it_is_seen_with_its_query(visitor: Visitor):
    visitor.open("neuron", subject="abacus", operator="add", layer=1, neuron=7, map="activation")
    visitor.drawn("map", "true")
    visitor.press("save", "map", format="png")
    picture = Image.open(visitor.file("map.png"))
    assert min(picture.size) > 500
    assert visitor.project.ask(picture.text["Description"]).height == 400
    assert "neuron=7" in picture.text["Source"]
    visitor.press("save", "map", format="svg")
    text = visitor.file("map.svg").read_text()
    assert "<dc:description" in text
    assert "from activations" in text


def test_it_is_usable_by_keyboard_and_by_ear_in_light_and_dark(visitor: Visitor):
    for path in ("prompt", "silence", "neuron", "find", "compare"):
        visitor.open(path)
        unnamed = """return [...document.querySelectorAll("main button, main input, main textarea, main [role=region], main .picture, nav")]
            .filter((one) => !one.innerText && !one.ariaLabel && !one.labels?.length && !one.title && !one.closest("label, [aria-label], .js-plotly-plot")
                && !one.getAttribute("aria-labelledby")).map((one) => one.outerHTML)"""
        assert visitor.run(unnamed) == []
        assert visitor.run("return document.querySelectorAll('nav [aria-current=page]').length") == 1
        assert visitor.run("return document.documentElement.scrollWidth <= innerWidth"), path
    ink = {}
    for scheme in ("light", "dark"):
        visitor.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        colours = visitor.run("const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]")
        ink[scheme] = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
        for path in ("silence", "neuron", "find"):  # which have every kind of field
            visitor.open(path)
            assert [found for found in visitor.run(CONTRASTS) if found[0] < 4.5] == []
    assert ink["light"][0] + 400 < ink["light"][1]
    assert ink["dark"][1] + 400 < ink["dark"][0]


def test_nothing_was_asked_of_anybody_else(visitor: Visitor):
    asked = [entry["message"] for entry in visitor.driver.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    assert asked
    hosts = {host for message in asked for host in re.findall(r'"url":"https?://([^/"]+)', message)}
    assert hosts == {visitor.address.split("/")[2]}
    severe = [entry["message"] for entry in visitor.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
