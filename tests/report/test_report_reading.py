"""Read the page in a real Chromium by keyboard, on a phone, in light and dark, and read aloud."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.report.browsing import CONTRASTS, Reader, needs_chromium

pytestmark = needs_chromium
OPENED = "for (const more of document.querySelectorAll('details')) more.open = true;"
FOCUSED = """
    window.focused = [];
    addEventListener("focusin", ({ target }) => {
      const { outlineStyle, outlineWidth } = getComputedStyle(target);
      focused.push([target, outlineStyle, parseFloat(outlineWidth)]);
    });
    document.querySelector(".skip").focus();
"""
IS_NEW = "return new Set(focused.map(([element]) => element)).size === focused.length"
CONTROLS = """
    const kinds = "a[href], button, select, input, summary, [tabindex='0']";
    const isShown = (control) => control.checkVisibility() || control.closest("nav");
    return [...document.querySelectorAll(kinds)]
      .filter((control) => isShown(control) && control.tabIndex >= 0);
"""
PROBLEMS = """
    const all = (selector) => [...document.querySelectorAll(selector)];
    const ids = all("[id]").map((element) => element.id);
    const landmarks = ["header", "nav[aria-label]", "main", "footer"];
    const levels = all("h1, h2, h3, h4").map((heading) => Number(heading.tagName[1]));
    const isNamed = (element) => element.textContent.trim() || element.ariaLabel;
    const hasScopes = (table) => [...table.querySelectorAll("th")].every((cell) => cell.scope);
    const hasRows = (table) => table.querySelector("tbody th[scope=row]");
    const references = ["aria-labelledby", "aria-describedby", "aria-controls"].flatMap((name) =>
      all(`[${name}]`).map((element) => element.getAttribute(name)));
    const links = all("a[href^='#']").map((link) => link.hash.slice(1));
    return {
      landmarks: landmarks.filter((name) => all(name).length !== 1),
      ids: ids.filter((id, place) => ids.indexOf(id) !== place),
      pictures: all("img").filter((picture) => !picture.alt).length,
      drawings: all("[role=img]").filter((picture) => !picture.ariaLabel).length,
      fields: all("select, input").filter((field) => !field.labels.length).length,
      buttons: all("button, a").filter((element) => !isNamed(element)).length,
      captions: all("table").filter((table) => !table.caption?.textContent).length,
      scopes: all("table").filter((table) => !hasScopes(table)).length,
      rows: all("table").filter((table) => !hasRows(table)).length,
      links: links.filter((id) => !ids.includes(id)),
      references: references.filter((id) => !ids.includes(id)),
      live: ["#status", "#cell"].filter((name) => !all(`${name}[role=status]`).length),
      jumps: levels.filter((level, place) => place && level > levels[place - 1] + 1).length,
    };
"""


def test_every_control_is_reached_by_tab_and_has_an_outline(reader: Reader):
    reader.open().select("abacus", "add")
    reader.run(FOCUSED)
    while reader.run(IS_NEW):  # until the order begins again
        ActionChains(reader.driver).send_keys(Keys.TAB * 40).perform()  # to what has the focus
    seen = reader.run("return focused")
    elements = [element for element, *_ in seen]
    again = next(place for place, element in enumerate(elements) if element in elements[:place])
    assert elements[again] == elements[0], "focus is trapped"
    for element, line, width in seen:
        assert line != "none", element.get_attribute("outerHTML")[:200]
        assert width >= 2, element.get_attribute("outerHTML")[:200]
    assert set(reader.run(CONTROLS)) <= set(elements)
    reader.find("#operator").send_keys(Keys.ARROW_DOWN)
    reader.until(lambda: reader.shown() == "abacus subtract")


def test_a_phone_does_not_scroll_sideways(reader: Reader):
    reader.open(390, 844)
    for subject, operator in [("abacus", ""), ("planted", "add")]:
        reader.select(subject, operator)
        reader.run(OPENED)
        widths = reader.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [390, 390]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(reader: Reader, scheme: str):
    reader.open(scheme=scheme)
    reader.draw("#probes")
    style, colours = "getComputedStyle(document.body)", []
    for is_dark in (scheme == "dark", scheme != "dark"):  # as preferred, then toggled
        reader.run(OPENED)
        contrasts = reader.run(CONTRASTS)
        assert [name for contrast, name in contrasts if contrast < 4.5] == []
        colours.append(reader.run(f"return [{style}.backgroundColor, {style}.color]"))
        assert reader.find("#theme").get_attribute("aria-pressed") == str(is_dark).lower()
        card = "getComputedStyle(document.querySelector('.card')).backgroundColor"
        assert reader.run(f"return {card}") == "rgba(0, 0, 0, 0)"
        ink = (
            "getComputedStyle(document.querySelector('#probes .vector').shadowRoot.lastChild).fill"
        )
        assert reader.run(f"return {ink}") == reader.run(f"return {style}.color")
        reader.find("#theme").click()
    (paper, _), (toggled, _) = colours
    assert paper != toggled


def test_the_page_reads_well_aloud(reader: Reader):
    problems = reader.open().run(PROBLEMS)
    assert not any(problems.values()), problems
