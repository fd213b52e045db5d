"""The documentation's site: links lead somewhere, every page is in the menu, queries have rows.

These tests read the pages that mkdocs gets, and do not need mkdocs: `make test` does not install
it. `make site` stops at a dead link, too.
"""

import re
from itertools import chain
from pathlib import Path

import pytest
import yaml

from stages.lib import dictionary
from stages.lib.console import plot
from stages.lib.sql.database import QueryError, connect
from stages.site import gallery, pages
from tests.micro import ROOT

PAGES = pages.pages()
GALLERY = pages.gallery()
LARGEST_GALLERY = 300_000  # bytes: Git keeps every version of a picture


def prose(page: str) -> str:
    return "".join(pages.FENCE.split(PAGES[page])[::2])


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", text) for text in words}


def test_every_link_leads_to_a_page_or_file_and_to_a_heading():
    for page in PAGES:
        for link, anchor in pages.LINK.findall(prose(page)):
            path = pages.target(page, link)
            is_served = Path(path).suffix in pages.SERVED and (ROOT / path).is_file()
            assert path in PAGES or is_served, f"{page}: {link}"
            if anchor:
                assert anchor[1:] in anchors(path), f"{page}: {link}{anchor}"
        for anchor in re.findall(r"\]\(#([^)]+)\)", prose(page)):
            assert anchor in anchors(page), f"{page}: #{anchor}"


def test_the_menu_has_every_page_once():
    menu = pages.listed(pages.navigation())
    own = re.compile(rf"{pages.TABLES}|.*\.ipynb\.md$")
    generated = {*filter(own.match, PAGES)}
    in_repository = {*pages.markdown_files(), f"{pages.GALLERY}/index.md"}
    assert sorted(menu) == sorted(in_repository | generated)


def test_the_dictionary_has_every_column():
    for table in dictionary.tables(ROOT / "stages").values():
        page = PAGES[f"{pages.TABLES}/{pages.chapter(table)}.md"]
        section = page.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(table.columns)


def test_the_menu_names_notes_with_their_acronyms():
    titles = {title for entry in pages.notes_menu() for title in entry}
    assert {"GPU", "Testing and CI", "SQL and joins", "Circuits and heuristics"} <= titles


def test_the_glossary_is_short_and_every_term_has_a_topic():
    topics = PAGES["docs/glossary.md"].split("\n## ")
    terms = [re.findall(r"^### (.+)$", topic, re.MULTILINE) for topic in topics]
    assert terms[0] == []
    assert len(terms) >= 5
    assert all(terms[1:])
    names = list(chain(*terms))
    assert len({*names}) == len(names) <= 48


def test_an_item_of_a_list_keeps_its_table():
    """Python-Markdown ends a list at a paragraph that is indented by less than 4 blanks."""
    assert "\n    | column | values |\n" in PAGES["stages/circuit/README.md"]
    assert pages.for_mkdocs("README.md", "1. a\n\n   b\n    c") == "1. a\n\n    b\n        c"


def test_an_item_after_a_paragraph_begins_with_an_empty_line():
    assert pages.for_mkdocs("README.md", "* a\n* b\n\n  c\n* d") == "* a\n* b\n\n    c\n\n* d"
    assert pages.for_mkdocs("README.md", "* a:\n  1. b") == "* a:\n\n    1. b"


def test_a_source_file_is_a_page_that_searches_skip():
    page = PAGES["stages/lib/sql/macros.sql.md"]
    assert "exclude: true" in page
    assert (ROOT / "stages/lib/sql/macros.sql").read_text() in page
    assert page.endswith("\n````\n")
    assert "(stages/lib/sql/macros.sql.md)" in PAGES["README.md"]


def test_a_folder_is_a_page_that_links_to_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "a/folder"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "x.csv").write_text("1,2")  # without a newline at its end
    (folder / "t.parquet").write_bytes(b"PAR1\xb5")
    (folder / "y.png").write_bytes(b"\x89PNG")
    (folder / "z.md").write_text("# z\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    texts = pages.source_pages("a/folder")
    assert {*texts} == {"a/folder.md", "a/folder/x.csv.md"}
    assert texts["a/folder/x.csv.md"].endswith("\n1,2\n````\n")
    links = re.findall(r"\((.+)\)", texts["a/folder.md"])
    assert links == ["folder/t.parquet", "folder/x.csv.md", "folder/y.png", "folder/z.md"]


def test_a_page_loads_nothing_from_the_network():
    settings = yaml.safe_load((ROOT / "stages/site/mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assert settings["strict"] is True
    [script] = settings["extra"]["polyfills"]
    assert "iframe-worker" in script  # otherwise the plugin offline loads one from the network
    for page, text in PAGES.items():
        assert not re.search(r"!\[[^\]]*\]\(\w+:|<(img|script|link|iframe) ", text), page
    for file in (ROOT / "stages/site/assets").iterdir():
        assert "http" not in file.read_text().replace("http://www.w3.org/2000/svg", ""), file


def test_pictures_of_the_gallery_are_in_git_and_small():
    drawn = [ROOT / query.picture for query in GALLERY]
    assert 8 <= len(drawn) <= 12
    assert sum(file.stat().st_size for file in drawn) <= LARGEST_GALLERY
    assert sorted(drawn) == sorted((ROOT / pages.GALLERY).glob("*.webp"))


def test_pictures_stay_as_they_are_without_the_tables_they_need(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    before = [(ROOT / query.picture).read_bytes() for query in GALLERY]
    gallery.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    for line, query in zip(lines, GALLERY, strict=True):
        name = Path(query.picture).name
        assert line.startswith(f"gallery: {name} stays as it is: There is no table ")
    assert [(ROOT / query.picture).read_bytes() for query in GALLERY] == before


def test_an_error_in_a_query_of_the_gallery_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def with_an_error(database: object, query: pages.GalleryQuery) -> None:
        raise QueryError("The column place is now rank.")

    monkeypatch.setattr(gallery, "draw", with_an_error)
    with pytest.raises(QueryError, match="now rank"):
        gallery.main([])


def test_a_query_of_the_gallery_begins_with_a_title_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / pages.GALLERY).mkdir(parents=True)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    for comment in ("", "-- A title alone\n"):
        (tmp_path / pages.GALLERY / "01-x.sql").write_text(f"{comment}select 1\n")
        with pytest.raises(ValueError, match=r"01-x\.sql does not begin with a title and a note"):
            pages.gallery()


@pytest.fixture(scope="module")
def database(micro: Path):
    with connect(micro / "data") as opened:
        yield opened


@pytest.mark.parametrize("query", GALLERY, ids=lambda query: Path(query.path).stem)
def test_a_query_of_the_gallery_has_rows_to_draw(database, query: pages.GalleryQuery):
    frame = plot.rows(database.sql(query.query, subject=pages.SUBJECT))
    assert frame.height >= 2
    assert plot.kind_of(frame) in plot.KINDS
