"""The page for everyone, in a real Chromium: by keyboard, on a phone, in light and dark, read aloud."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.report.browsing import CONTRASTS, Reader, needs_chromium

pytestmark = needs_chromium
EVERYTHING = "a[href], button, select, input, summary, [tabindex='0']"
FOCUSED = """
    window.focused = [];
    addEventListener("focusin", ({ target }) => {
      const { outlineStyle, outlineWidth } = getComputedStyle(target);
      focused.push([target, outlineStyle, parseFloat(outlineWidth)]);
    });
    document.querySelector(".skip").focus();
"""


def test_every_control_is_reached_by_tab_and_shows_it(reader: Reader):
    reader.open().choose("abacus", "add")
    reader.run(FOCUSED)
    seen: list = []
    while len({element for element, *_ in seen}) == len(seen):  # until it begins again
        ActionChains(reader.driver).send_keys(Keys.TAB * 40).perform()  # to whatever has the focus by then
        seen = reader.run("return focused")
    elements = [element for element, *_ in seen]
    first_again = next(number for number, element in enumerate(elements) if element in elements[:number])
    assert elements[first_again] == elements[0], "focus is trapped"
    for element, line, width in seen:
        assert line != "none", element.get_attribute("outerHTML")[:200]
        assert width >= 2, element.get_attribute("outerHTML")[:200]
    controls = f"""return [...document.querySelectorAll(`{EVERYTHING}`)]
        .filter((control) => (control.checkVisibility() || control.closest("nav")) && control.tabIndex >= 0)"""
    assert set(reader.run(controls)) <= set(elements)
    reader.find("#operator").send_keys(Keys.ARROW_DOWN)
    reader.until(lambda: reader.shown() == "abacus subtract")


def test_a_phone_does_not_scroll_sideways(reader: Reader):
    reader.open(390, 844)
    for subject, operator in [("abacus", ""), ("planted", "add")]:
        reader.choose(subject, operator)
        reader.run("for (const more of document.querySelectorAll('details')) more.open = true")
        assert reader.run("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(reader: Reader, scheme: str):
    reader.open(scheme=scheme)
    colours = {}
    for turn in ("preferred", "toggled"):
        reader.run("for (const more of document.querySelectorAll('details')) more.open = true")
        weak = [found for found in reader.run(CONTRASTS) if found[0] < 4.5]
        assert weak == []
        colours[turn] = reader.run("return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
        assert reader.find("#theme").get_attribute("aria-pressed") == str((scheme == "dark") == (turn == "preferred")).lower()
        assert reader.run("return getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
        reader.find("#theme").click()
    assert colours["preferred"] == colours["toggled"][::-1] or colours["preferred"][0] != colours["toggled"][0]


def test_it_reads_well_aloud(reader: Reader):
    reader.open()
    found = reader.run(
        """const all = (selector) => [...document.querySelectorAll(selector)];
        const ids = all("[id]").map((element) => element.id);
        return {
          landmarks: ["header", "nav[aria-label]", "main", "footer"].filter((name) => all(name).length !== 1),
          ids: ids.filter((id, place) => ids.indexOf(id) !== place),
          pictures: all("img").filter((picture) => !picture.alt).length,
          fields: all("select, input").filter((field) => !field.labels.length).length,
          buttons: all("button, a").filter((named) => !(named.textContent.trim() || named.ariaLabel)).length,
          tables: all("table").filter((table) => !table.caption?.textContent || [...table.querySelectorAll("th")].some((cell) => !cell.scope)).length,
          unnamed: all("table").filter((table) => !table.querySelector("tbody th[scope=row]")).length,
          links: all("a[href^='#']").filter((link) => !ids.includes(link.hash.slice(1))).map((link) => link.hash),
          names: all("[aria-labelledby], [aria-describedby], [aria-controls]").flatMap((element) =>
            ["aria-labelledby", "aria-describedby", "aria-controls"].map((name) => element.getAttribute(name))).filter((id) => id && !ids.includes(id)),
          live: all("#status[role=status], #cell[role=status]").length,
          jumps: all("h1, h2, h3, h4").map((heading) => +heading.tagName[1]).filter((level, place, levels) => place && level > levels[place - 1] + 1).length,
        };"""
    )
    live = found.pop("live")
    assert live == 2
    assert not any(found.values()), found
