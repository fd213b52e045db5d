"""The page in a real Chromium: it is quiet and self-contained, follows its selectors, tells the tables' numbers, and serves everyone."""

import json
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from stages.lib.core.hdf5_store import LayerStore, widen
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.drawing import drawing
from stages.report.page.contents import contents
from stages.report.page.pictures import picture
from tests.conftest import run_in
from tests.report.browsing import Reader, compare, needs_chromium, project, table, tells

pytestmark = needs_chromium
CONTENTS = contents()


def test_it_loads_quietly_and_asks_for_nothing(reader: Reader):
    reader.driver.get_log("browser"), reader.driver.get_log("performance")
    reader.open()
    for subject in ("planted", "abacus"):
        reader.choose(subject, "add")
    assert reader.driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in reader.driver.get_log("performance")]
    page = reader.page.as_uri()  # the browser's own pages, such as the one of a new tab, ask for what they like
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = [request["request"]["url"] for request in sent if request["documentURL"] == page]
    assert [url for url in asked if not url.startswith("data:")] == [page]
    names = reader.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in names if not name.startswith("data:")] == []


def test_nothing_can_be_loaded_from_elsewhere(reader: Reader):
    reader.open()
    reader.run("document.body.append(Object.assign(new Image(), { src: 'https://example.org/x.png' }))")
    reader.until(lambda: any("Content Security Policy" in entry["message"] for entry in reader.driver.get_log("browser")))


@pytest.mark.parametrize("subject", ["abacus", "planted"])
@pytest.mark.parametrize("operator", ["", "subtract"])
def test_numbers_are_those_of_the_tables(reader: Reader, page: Path, subject: str, operator: str):
    reader.open().choose(subject, operator)
    whole = {
        "accuracy-grid": ("accuracy", []),
        "probes": ("probes", ["operator", "layer", "position"]),
        "circuit-heads": ("circuit_heads", ["operator", "rank"]),
    }
    for item, (name, order) in whole.items():
        expected = table(page, subject, name).drop("subject")
        expected = expected.sort(order or expected.columns).filter((pl.col("operator") == operator) | (operator == ""))
        compare(reader.rows(f"#{item}"), expected)
    chosen = pl.col("operator").is_in(["add", "subtract", "multiply", "divide"] if operator == "" else [operator])
    rows = reader.rows("#labels")
    labels = table(page, subject, "labels").filter(chosen).select(list(rows[0]))
    order = ["chance_corrected", *labels.columns]
    first = pl.concat(
        part.sort(order, descending=[True] + [False] * len(labels.columns)).head(100) for part in labels.partition_by("operator")
    )
    compare(rows, first.sort(order, descending=[True] + [False] * len(labels.columns)))


def test_selectors_change_what_is_shown(reader: Reader, page: Path):
    reader.open()
    params = yaml.safe_load((page.parents[1] / "params.yaml").read_text())
    params_of_page = yaml.safe_load((page.parents[1] / "stages/report/params.yaml").read_text())["report"]
    assert [option.text for option in reader.find("#subject").find_elements("tag name", "option")] == sorted(params["subjects"])
    for subject, operator in [("abacus", "divide"), ("planted", "add"), ("abacus", "")]:
        reader.choose(subject, operator)
        assert subject in reader.text("#status")
        assert reader.text("#probes caption") == f"Where the answer can be read · {subject} · {operator or 'all operators'}"
        assert reader.find("#probes .file a").get_attribute("href").endswith(f"/data/{subject}/circuit/probes.parquet")
        assert Path(urllib.parse.urlparse(reader.find("#probes .file a").get_attribute("href")).path).exists()
        shown = {row["operator"] for row in reader.rows("#spectra")}
        assert shown == ({operator} if operator else set(table(page, subject, "spectra")["operator"]))
        shown_picture = urllib.parse.unquote(reader.find("#probes img").get_attribute("src"))
        file = page.parent / subject / "circuit/figures/probes"
        drawn = picture(file, params_of_page["figure_width"], params_of_page["figure_quality"])
        assert shown_picture.partition(",")[2] == drawn
        asked = [operator] if operator else params["subjects"][subject].get("operators", OPERATORS)
        links = [link.get_attribute("href") for link in reader.driver.find_elements("css selector", "#neuron-maps figcaption a")]
        assert [Path(link).name for link in links] == [f"neurons_{o}.{kind}" for o in asked for kind in ("svg", "png")]
    both = reader.rows("#overlaps")
    assert both
    reader.choose("abacus", "divide")
    assert reader.rows("#overlaps") == [row for row in both if "divide" in (row["operator_a"], row["operator_b"])]


def test_what_is_missing_is_said(reader: Reader):
    reader.open().choose("planted", "divide")
    assert reader.text("#probes .rows") == "planted has no prompts with the operator divide."
    assert reader.text("#neuron-maps .figures") == "planted has no prompts with the operator divide."
    for part in CONTENTS.sections:
        for item in part.items:
            assert reader.text(f"#{item.id} .rows") or reader.text(f"#{item.id} .figures"), item.id


def test_a_table_of_a_later_stage_appears_once_it_is_there(reader: Reader, page: Path, micro: Path, tmp_path: Path):
    folder = project(micro, tmp_path / "later")
    shutil.copytree(page.parents[1] / "data/report", folder / "data/report")
    setting = pl.read_parquet(micro / "data/heuristics/label_setting.parquet")
    (folder / "data/heuristics/label_setting.parquet").unlink()
    later = Reader(reader.driver, folder / "reports/study.html")
    run_in(folder, "python", "-m", "stages.report.index")
    assert "There is no table label_setting" in later.open().text("#setting .rows")
    setting.write_parquet(folder / "data/heuristics/label_setting.parquet")
    run_in(folder, "python", "-m", "stages.report.index")
    [row] = later.open().rows("#setting")
    assert float(row["threshold"]) == pytest.approx(setting["threshold"][0])


def test_the_browser_shows_the_picked_neuron(reader: Reader, page: Path):
    reader.open().choose("planted", "subtract")
    label = table(page, "planted", "labels").filter(operator="subtract").row(0, named=True)
    reader.find("#browse-search").send_keys(f"{label['layer']}.{label['neuron']} ", label["heuristic"])
    reader.until(lambda: f"neuron {label['neuron']} on subtract" in reader.text("#neuron-title"))
    assert label["heuristic"] in reader.text("#neuron-names")
    values, valid = activations(page, "planted", "subtract", label)
    colours = np.array(
        reader.run("const c = document.querySelector('#whole'); return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
    )
    colours = colours.reshape(*values.shape, 4)[..., :3]
    sizes = np.abs(values[valid])
    limit = np.quantile(sizes, 0.995) or sizes.max()
    expected = drawing.matplotlib.colormaps["RdBu_r"]((values / limit + 1) / 2)[..., :3] * 255
    np.testing.assert_allclose(colours[valid], expected[valid], atol=8)
    assert 0 < valid.sum() < valid.size
    assert (colours[~valid] == 0xD0).all()
    extreme = np.unravel_index(np.abs(np.where(valid, values, 0)).argmax(), values.shape)
    whole = reader.find("#whole")
    whole.send_keys(Keys.SHIFT, Keys.ARROW_UP * 9, Keys.ARROW_LEFT * 9)
    whole.send_keys(Keys.NULL, Keys.ARROW_DOWN * int(extreme[0]), Keys.ARROW_RIGHT * int(extreme[1]))
    said = reader.text("#cell")
    assert said.startswith(f"op1 {extreme[0]}, op2 {extreme[1]}: activation ")
    assert float(said.split()[-1]) == pytest.approx(values[extreme], rel=0.01)


def activations(page: Path, subject: str, operator: str, at: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    store = LayerStore(page.parents[1] / "data" / subject / "store/activations" / f"{operator}.h5")
    return widen(store.read(at["layer"], slice(at["neuron"], at["neuron"] + 1), slice(None)))[0], store.columns["result"] >= 0


def test_the_browser_tells_what_is_known_of_a_neuron(reader: Reader, page: Path):
    reader.open().choose("planted", "add")
    knocked_out = table(page, "planted", "knockouts_by_heuristic").filter(operator="add")
    label = table(page, "planted", "labels").filter(operator="add").join(knocked_out.select("heuristic"), on="heuristic", how="semi")
    at = label.row(0, named=True)
    reader.find("#browse-search").send_keys(f"{at['layer']}.{at['neuron']} ", at["heuristic"])
    reader.until(lambda: f"neuron {at['neuron']} on add" in reader.text("#neuron-title"))
    keys = {"operator": "add", "layer": at["layer"], "neuron": at["neuron"]}
    matches, effects, _, knockouts = (reader.rows(f"#facts > div:nth-of-type({n})") for n in (1, 2, 3, 4))
    known = table(page, "planted", "matches").filter(**keys)
    called = {(row["heuristic"], row["side"]) for row in matches if row["label"] == "yes"}
    assert called == set(table(page, "planted", "labels").filter(**keys).select("heuristic", "side").rows())
    assert len(matches) == min(known.height, 12)
    for row in matches:
        own = known.row(by_predicate=(pl.col("heuristic") == row["heuristic"]) & (pl.col("side") == row["side"]), named=True)
        assert all(tells(row[name], own[name]) for name in ("score", "chance_corrected", "p_value", "q_value"))
    patched = table(page, "planted", "neuron_effects").filter(**keys, method="exact")
    assert [row["position"] for row in effects] == sorted(patched["position"])
    assert {row["heuristic"] for row in knockouts} <= {row["heuristic"] for row in matches if row["label"] == "yes"}
    assert len(knockouts) == min(knocked_out.filter(pl.col("heuristic").is_in(label.filter(**keys)["heuristic"].to_list())).height, 12)
    store = LayerStore(page.parents[1] / "data/planted/store/value_logits.h5")
    logits = widen(store.read(at["layer"], slice(at["neuron"], at["neuron"] + 1), slice(None)))[0]
    votes = reader.run("return [...document.querySelectorAll('#promoted li')].map((vote) => vote.textContent.split(' '))")
    assert [int(number) for number, _ in votes] == np.argsort(-logits, kind="stable")[:10].tolist()
    assert [float(logit) for _, logit in votes] == pytest.approx(np.sort(logits)[::-1][:10], abs=0.006)


def test_the_browser_searches_and_filters(reader: Reader):
    reader.open().choose("planted", "add")
    every = reader.run("return [...document.querySelector('#browse-list').options].map((option) => option.text)")
    reader.find("#browse-search").send_keys("result")
    some = reader.run("return [...document.querySelector('#browse-list').options].map((option) => option.text)")
    assert some == [text for text in every if "result" in text]
    assert 0 < len(some) < len(every)
    before = reader.text("#neuron-title")
    reader.find("#browse-list").send_keys(Keys.ARROW_DOWN)
    reader.until(lambda: reader.text("#neuron-title") != before)
    reader.find("#browse-search").send_keys(" nothing is called that")
    reader.until(lambda: "0 of" in reader.text("#browse-count"))
    assert not reader.find("#neuron").is_displayed()


def test_a_slow_subject_does_not_overwrite_a_later_one(reader: Reader):
    reader.open().choose("abacus", "add")
    reader.run(
        """const [find, whole] = [document.querySelector, Response.prototype.arrayBuffer];
        const released = new Promise((resolve) => (globalThis.release = resolve));
        let asked = "";
        document.querySelector = (selector) => find.call(document, (asked = selector));
        Response.prototype.arrayBuffer = async function () {
          const slow = asked.includes("planted/neurons");
          const bytes = await whole.call(this);
          if (slow) await released;
          return bytes;
        };"""
    )
    Select(reader.find("#subject")).select_by_visible_text("planted")
    reader.until(lambda: "planted" in reader.text("#probes caption"))  # only its neurons are still to come
    reader.choose("abacus", "subtract")
    seen = [reader.text(place) for place in ("#status", "#browse-count", "#neuron-title")]
    reader.driver.execute_async_script("release(); setTimeout(arguments[0], 1000)")
    assert reader.shown() == "abacus subtract"
    assert [reader.text(place) for place in ("#status", "#browse-count", "#neuron-title")] == seen
