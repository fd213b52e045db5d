"""Read the page in a real Chromium, and compare what it shows with the tables."""

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
WITHOUT_DIVISION = "planted has no prompts with the operator divide."
COLOURS = """
    const canvas = document.querySelector("#whole");
    const { width, height } = canvas;
    return [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
"""
LINES = """
    const { shadowRoot } = document.querySelector("#probes .vector");
    return shadowRoot.querySelectorAll("path").length;
"""
# delays the payload of a model's neurons until release() is called
SLOW = """
    const [find, whole] = [document.querySelector, Response.prototype.arrayBuffer];
    const released = new Promise((resolve) => (globalThis.release = resolve));
    let selected = "";
    document.querySelector = (selector) => find.call(document, (selected = selector));
    Response.prototype.arrayBuffer = async function () {
      const slow = selected.includes("planted/neurons");
      const bytes = await whole.call(this);
      if (slow) await released;
      return bytes;
    };
"""


def local(addresses: list[str]) -> list[str]:
    """Return the addresses that are not inside the page itself."""
    return list(filter(lambda address: not address.startswith("data:"), addresses))


def test_the_page_loads_quietly_and_requests_nothing(reader: Reader):
    reader.driver.get_log("browser")
    reader.driver.get_log("performance")
    reader.open()
    for subject in ("planted", "abacus"):
        reader.select(subject, "add")
    assert reader.driver.get_log("browser") == []
    page = reader.page.as_uri()
    requested = []
    for entry in reader.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        request = message["params"]
        # the browser's own pages, such as that of a new tab, request what they like
        if message["method"] == "Network.requestWillBeSent" and request["documentURL"] == page:
            requested.append(request["request"]["url"])
    assert local(requested) == [page]
    resources = "performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert local(reader.run(f"return {resources}")) == []


def test_nothing_can_be_loaded_from_elsewhere(reader: Reader):
    reader.open()
    image = "Object.assign(new Image(), { src: 'https://example.org/x.png' })"
    reader.run(f"document.body.append({image})")
    reader.until(lambda: "Content Security Policy" in str(reader.driver.get_log("browser")))


@pytest.mark.parametrize("subject", ["abacus", "planted"])
@pytest.mark.parametrize("operator", ["", "subtract"])
def test_numbers_are_those_of_the_tables(reader: Reader, page: Path, subject: str, operator: str):
    reader.open().select(subject, operator)
    operators = [operator] if operator else list(OPERATORS)
    of_operators = pl.col("operator").is_in(operators)
    for item, name, order in (
        ("accuracy-grid", "accuracy", None),
        ("probes", "probes", ["operator", "layer", "position"]),
        ("circuit-heads", "circuit_heads", ["operator", "rank"]),
    ):
        expected = table(page, subject, name).drop("subject").filter(of_operators)
        compare(reader.rows(f"#{item}"), expected.sort(order or expected.columns))
    rows = reader.rows("#labels")
    labels = table(page, subject, "labels").filter(of_operators).select(list(rows[0]))
    labels = labels.sort(-pl.col("chance_corrected"), *labels.columns)
    compare(rows, labels.filter(pl.int_range(pl.len()).over("operator") < 100))


@pytest.mark.parametrize(
    ("subject", "operator"),
    [("abacus", "divide"), ("planted", "add"), ("abacus", "")],
)
def test_selectors_change_what_is_shown(
    reader: Reader,
    page: Path,
    subject: str,
    operator: str,
):
    reader.open().select(subject, operator)
    assert subject in reader.text("#status")
    caption = f"Where the answer can be read · {subject} · {operator or 'all operators'}"
    assert reader.text("#probes caption") == caption
    file = reader.find("#probes .file a").get_attribute("href")
    assert file.endswith(f"/data/{subject}/circuit/probes.parquet")
    assert Path(urllib.parse.urlparse(file).path).exists()
    shown = {row["operator"] for row in reader.rows("#spectra")}
    known = set(table(page, subject, "spectra")["operator"])
    assert shown == ({operator} if operator else known)
    settings = yaml.safe_load((page.parents[1] / "stages/report/params.yaml").read_text())
    report = settings["report"]
    size = report["figure_width"], report["figure_quality"], report["figure_kib"]
    drawn = picture(page.parent / subject / "circuit/figures/probes", *size)
    reader.draw("#probes")
    assert reader.run(LINES) == drawn.count("<path")
    params = yaml.safe_load((page.parents[1] / "params.yaml").read_text())
    files = []
    for name in [operator] if operator else params["subjects"][subject].get("operators", OPERATORS):
        files += [f"neurons_{name}.svg", f"neurons_{name}.png"]
    links = reader.driver.find_elements("css selector", "#neuron-maps figcaption a")
    assert [Path(link.get_attribute("href")).name for link in links] == files


def test_every_model_can_be_selected(reader: Reader, page: Path):
    params = yaml.safe_load((page.parents[1] / "params.yaml").read_text())
    assert reader.open().texts("#subject option") == sorted(params["subjects"])


def test_a_table_with_two_operators_follows_both(reader: Reader):
    reader.open().select("abacus")
    rows = reader.rows("#overlaps")
    assert rows
    reader.select("abacus", "divide")
    with_division = [row for row in rows if "divide" in (row["operator_a"], row["operator_b"])]
    assert reader.rows("#overlaps") == with_division


def test_the_page_says_what_is_missing(reader: Reader):
    reader.open().select("planted", "divide")
    assert reader.text("#probes .rows") == WITHOUT_DIVISION
    assert reader.text("#neuron-maps .figures") == WITHOUT_DIVISION
    for item in CONTENTS.items():
        rows = reader.text(f"#{item.id} .rows") if item.table else ""
        shown = rows or reader.text(f"#{item.id} .figures")
        assert shown, item.id


def test_a_table_of_a_later_stage_appears_once_it_is_there(
    reader: Reader,
    page: Path,
    micro: Path,
    tmp_path: Path,
):
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


def browse(reader: Reader, operator: str, label: dict[str, Any]) -> None:
    """Show a labelled neuron in the neuron browser."""
    search = reader.find("#browse-search")
    search.send_keys(f"{label['layer']}.{label['neuron']} ", label["heuristic"])
    title = f"neuron {label['neuron']} on {operator}"
    reader.until(lambda: title in reader.text("#neuron-title"))


def of_neuron(store: LayerStore, label: dict[str, Any]) -> np.ndarray:
    """Return the values of a neuron."""
    neuron = label["neuron"]
    return widen(store.read(label["layer"], slice(neuron, neuron + 1), slice(None)))[0]


def test_the_browser_shows_the_map_of_a_neuron(reader: Reader, page: Path):
    reader.open().select("planted", "subtract")
    label = table(page, "planted", "labels").filter(operator="subtract").row(0, named=True)
    browse(reader, "subtract", label)
    assert label["heuristic"] in reader.text("#neuron-names")
    store = LayerStore(page.parents[1] / "data/planted/store/activations/subtract.h5")
    values, valid = of_neuron(store, label), store.columns["result"] >= 0
    colours = np.array(reader.run(COLOURS)).reshape(*values.shape, 4)[..., :3]
    sizes = np.abs(values[valid])
    limit = np.quantile(sizes, 0.995) or sizes.max()
    expected = drawing.matplotlib.colormaps["RdBu_r"]((values / limit + 1) / 2)[..., :3] * 255
    np.testing.assert_allclose(colours[valid], expected[valid], atol=8)
    assert 0 < valid.sum() < valid.size
    assert (colours[~valid] == 0xD0).all()
    row, column = np.unravel_index(np.abs(np.where(valid, values, 0)).argmax(), values.shape)
    whole = reader.find("#whole")
    whole.send_keys(Keys.SHIFT, Keys.ARROW_UP * 9, Keys.ARROW_LEFT * 9)
    whole.send_keys(Keys.NULL, Keys.ARROW_DOWN * int(row), Keys.ARROW_RIGHT * int(column))
    cell = reader.text("#cell")
    assert cell.startswith(f"op1 {row}, op2 {column}: activation ")
    assert float(cell.split()[-1]) == pytest.approx(values[row, column], rel=0.01)


def fact(title: str) -> str:
    """Return the selector of a table about the neuron."""
    titles = [declared.title for declared in CONTENTS.browser.facts]
    return f"#facts > div:nth-of-type({titles.index(title) + 1})"


def test_the_browser_shows_what_tables_have_about_a_neuron(reader: Reader, page: Path):
    reader.open().select("planted", "add")
    labels = table(page, "planted", "labels").filter(operator="add")
    ablations = table(page, "planted", "knockouts_by_heuristic").filter(operator="add")
    with_ablation = labels.join(ablations.select("heuristic"), on="heuristic", how="semi")
    label = with_ablation.row(0, named=True)
    browse(reader, "add", label)
    keys = {"operator": "add", "layer": label["layer"], "neuron": label["neuron"]}
    own = table(page, "planted", "labels").filter(**keys)

    matches = reader.rows(fact("Matches"))
    known = table(page, "planted", "matches").filter(**keys)
    named = {(row["heuristic"], row["side"]) for row in matches if row["label"] == "yes"}
    assert named == set(own.select("heuristic", "side").rows())
    assert len(matches) == min(known.height, 12)
    rows = known.rows_by_key(("heuristic", "side"), named=True, unique=True)
    for row in matches:
        expected = rows[row["heuristic"], row["side"]]
        for name in ("score", "chance_corrected", "p_value", "q_value"):
            assert tells(row[name], expected[name])

    effects = reader.rows(fact("Effects of patching it"))
    patched = table(page, "planted", "neuron_effects").filter(**keys, method="exact")
    assert [row["position"] for row in effects] == sorted(patched["position"])

    predicates = reader.rows(fact("Predicate, searched without the catalogue"))
    known = table(page, "planted", "discovered").filter(**keys)
    assert [row["predicate"] for row in predicates] == known["predicate"].to_list()

    shown = reader.rows(fact("Ablating its heuristics"))
    heuristics = own["heuristic"].to_list()
    assert {row["heuristic"] for row in shown} <= {*heuristics}
    expected = ablations.filter(pl.col("heuristic").is_in(heuristics))
    assert len(shown) == min(expected.height, 12)

    store = LayerStore(page.parents[1] / "data/planted/store/value_logits.h5")
    logits = of_neuron(store, label)
    promoted = np.array(list(map(str.split, reader.texts("#promoted li"))))
    first = np.argsort(-logits, kind="stable")[:10]
    assert promoted[:, 0].astype(int).tolist() == first.tolist()
    np.testing.assert_allclose(promoted[:, 1].astype(float), logits[first], atol=0.006)


def test_the_browser_searches_and_filters(reader: Reader):
    reader.open().select("planted", "add")
    every = reader.texts("#browse-list option")
    reader.find("#browse-search").send_keys("result")
    some = reader.texts("#browse-list option")
    assert some == list(filter(lambda text: "result" in text, every))
    assert 0 < len(some) < len(every)
    before = reader.text("#neuron-title")
    reader.find("#browse-list").send_keys(Keys.ARROW_DOWN)
    reader.until(lambda: reader.text("#neuron-title") != before)
    reader.find("#browse-search").send_keys(" no heuristic has this name")
    reader.until(lambda: "0 of" in reader.text("#browse-count"))
    assert not reader.find("#neuron").is_displayed()


def test_a_slow_model_does_not_overwrite_a_later_one(reader: Reader):
    def shown() -> list[str]:
        return [reader.text(place) for place in ("#status", "#browse-count", "#neuron-title")]

    reader.open().select("abacus", "add")
    reader.run(SLOW)
    Select(reader.find("#subject")).select_by_visible_text("planted")
    reader.until(lambda: "planted" in reader.text("#probes caption"))  # all but its neurons
    reader.select("abacus", "subtract")
    before = shown()
    reader.driver.execute_async_script("release(); setTimeout(arguments[0], 1000)")
    assert reader.shown() == "abacus subtract"
    assert shown() == before
