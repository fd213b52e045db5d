"""Test what the report shows: the rows and figures that chapters declare, and its size."""

import base64
import json
import re
import shutil
import zlib
from collections import Counter
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
import yaml

from stages.lib.core.settings import ParamsError, check
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.dictionary import tables
from stages.lib.sql.database import Database, connect
from stages.lib.sql.files import subject_files
from stages.report import index
from stages.report.page.contents import Contents, Fact, Item, Rows, contents
from stages.report.page.html import bounded
from stages.report.page.neurons import KEYS
from stages.report.page.rows import ContentsError, ask, database, packed, places, query
from stages.report.settings import Report
from stages.report.subject import NEEDED
from tests.conftest import run_in
from tests.declared import stages
from tests.micro import ROOT
from tests.report.browsing import REPORT, project

CONTENTS = contents()
STUDY, OWN = CONTENTS.only(study=True), CONTENTS.only(study=False)
ITEMS = {item.id: item for item in CONTENTS.items()}
KNOWN = tables(ROOT / "stages")


def settings(**changes: Any) -> Report:
    return check(Report, REPORT | changes, "report")


@pytest.fixture
def built(page: Path) -> Path:
    """Return the project in which the page was built."""
    return page.parents[1]


def inflated(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def payload(built: Path, subject: str, name: str) -> Any:
    data = json.loads((built / f"data/report/{subject}.json").read_text())
    return inflated(data["payloads"][name])


def subjects_in(page: str) -> set[str]:
    """Return the models whose payloads a page carries."""
    return set(re.findall(r'data-payload="([^/"]+)/', page)) - {"shared"}


def test_the_page_of_a_model_has_nothing_about_another(built: Path, micro: Path, tmp_path: Path):
    folder = project(micro, tmp_path / "one")
    shutil.copytree(built / "data/report", folder / "data/report")
    run_in(folder, "python", "-m", "stages.report.index", "planted")
    assert list((folder / "reports").glob("*.html")) == [folder / "reports/index.html"]
    own = (folder / "reports/index.html").read_text()
    study = (built / "reports/study.html").read_text()
    assert subjects_in(own) == {"planted"}
    assert subjects_in(study) > {"planted"}
    compared = [f">{item.title}</h3>" for item in STUDY.items()]
    assert len(compared) > 3
    for title in compared:
        assert title not in own
        assert title in study
    [text] = re.findall(r'data-payload="abacus/study">([^<]+)<', study)
    rows = inflated(text)["tables"]
    for item in ("trajectory-table", "finetuned", "study-claims"):
        assert rows[item]["rows"]


def root_of(page: Path) -> Path:
    """Return the folder that the links of a page to tables and figures start from."""
    [text] = re.findall(r'id="declared">([^<]+)<', page.read_text())
    return (page.parent / json.loads(text)["root"]).resolve()


def test_links_of_a_page_lead_to_the_files_of_the_project(
    built: Path, micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = project(micro, tmp_path / "linked")
    shutil.copytree(built / "data/report", folder / "data/report")
    monkeypatch.chdir(folder)
    pages = ["reports/index.html", "reports/planted/index.html", "page.html"]
    for page in pages:
        index.main("planted", page)
        assert root_of(Path(page)) == folder.resolve()
    before = Path(pages[0]).read_text()
    with pytest.raises(SystemExit, match=r"no page for 'planet': models with data .* planted"):
        index.main("planet")
    assert Path(pages[0]).read_text() == before


def test_ids_are_unique():
    ids = list(map(attrgetter("id"), [*CONTENTS.sections, *CONTENTS.items()]))
    assert len(ids) == len(set(ids))


def test_sections_are_those_of_the_chapters_in_the_order_of_the_data():
    files = {file.parent.name: file for file in (ROOT / "stages").glob("*/page.yaml")}
    declared = []
    for chapter in filter(files.__contains__, CHAPTERS):
        declared += yaml.safe_load(files.pop(chapter).read_text())
    ids = map(attrgetter("id"), CONTENTS.sections)
    assert list(ids) == list(map(itemgetter("id"), declared))
    assert not files


def test_every_declared_figure_is_drawn(micro: Path):
    patterns = CONTENTS.pictures(shared=True) + CONTENTS.pictures(shared=False)
    for pattern in patterns:
        path = micro / "reports" / pattern.format(subject="abacus", operator="add")
        assert path.with_suffix(".svg").exists(), path
        assert path.with_suffix(".png").exists(), path


def empty_table(name: str) -> str:
    """Return the statement that creates a table with the documented columns."""
    columns = KNOWN[name].columns.items()
    typed = ", ".join(f'"{column}" {kind}' for column, (kind, _) in columns)
    return f'create table "{name}" ({typed})'


@pytest.mark.parametrize(
    "item",
    [item for item in ITEMS.values() if item.table in KNOWN],
    ids=lambda item: item.id,
)
def test_an_item_only_names_columns_that_its_table_has(item: Item):
    """An empty table with the documented columns answers the item's query."""
    connection = duckdb.connect()
    for name in item.tables:
        connection.execute(empty_table(name))
    shown = connection.sql(query(item, item.shared).replace("$subject", "'s'"))
    assert set(item.shares) <= set(shown.columns)


@pytest.mark.parametrize("fact", CONTENTS.browser.facts, ids=lambda fact: fact.title)
def test_a_fact_only_names_columns_that_its_table_has(fact: Fact):
    connection = duckdb.connect()
    for name in fact.tables:
        connection.execute(empty_table(name))
    shown = connection.sql(query(fact).replace("$subject", "'s'"))
    needed = {"neuron": {"operator", "layer", "neuron"}, "heuristic": {"operator", "heuristic"}}
    assert {*fact.shares, *needed[fact.by]} <= set(shown.columns)


def test_measured_numbers_are_those_whose_logits_change_most(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Number n is at place n + 1 of the list of changes."""
    changes = [0.1, -0.3, 0.25, 0.0, *[0.05] * 8, 0.4, -0.2]
    keys = {"subject": "s", "operator": "add", "layer": 1, "neuron": [7, 8]}
    measured = {"correlation": [0.6, None], "chance_correlation": 0.1, "consistency": 0.5}
    shifts = pl.DataFrame(keys | {"changes": [changes, changes[::-1]]})
    (tmp_path / "data/s/neurons").mkdir(parents=True)
    tables = {"causal_votes": pl.DataFrame(keys | measured), "logit_shifts": shifts}
    for name, rows in tables.items():
        rows.write_parquet(tmp_path / f"data/s/neurons/{name}.parquet")
    monkeypatch.chdir(tmp_path)
    [fact] = [fact for fact in CONTENTS.browser.facts if fact.table == "causal_votes"]
    expression, _ = KEYS["neuron"]
    rows, _ = ask(fact, database(tables, "s"), "s", 12, expression, ["add:1:7"])
    [row] = rows.iter_rows(named=True)
    assert row["promoted"][:3] == [12, 2, 0]
    assert row["demoted"][:3] == [1, 13, 3]
    assert len(row["promoted"]) == len(row["demoted"]) == 10
    assert (row["neuron"], row["correlation"]) == (7, 0.6)
    [packed_row] = packed(rows)["rows"]
    assert str(packed_row[3]).startswith("12, 2, 0, ")


def put(table: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Database:
    """Return what stages see of a project with the table effects of the model s, and no other."""
    (folder / "data/s/neurons").mkdir(parents=True)
    table.write_parquet(folder / "data/s/neurons/effects.parquet")
    monkeypatch.chdir(folder)
    assert places(["effects", "absent"], "s") == {"effects": "data/s/neurons/effects.parquet"}
    return database(["effects", "absent"], "s")


def test_rows_are_the_first_of_each_operator_in_the_declared_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    rng = np.random.default_rng(0)
    table = pl.DataFrame({
        "subject": "s",
        "operator": ["add"] * 50 + ["divide"] * 3,
        "neuron": range(53),
        "effect": rng.integers(0, 9, 53),
    })  # fmt: skip
    data = put(table.sample(fraction=1, shuffle=True, seed=1), monkeypatch, tmp_path)
    declared = {"title": "t", "table": "effects", "where": "effect > 1", "sort": "effect desc"}
    rows, counts = ask(Rows.model_validate(declared), data, "s", 5)
    kept = table.drop("subject").filter(pl.col("effect") > 1)
    kept = kept.sort("effect", "operator", "neuron", descending=[True, False, False])
    assert rows.equals(kept.filter(pl.int_range(pl.len()).over("operator") < 5))
    assert counts == dict(kept.group_by("operator").len().rows())


def test_an_absent_table_is_none_and_a_wrong_column_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    data = put(pl.DataFrame({"subject": ["s"], "effect": [1.0]}), monkeypatch, tmp_path)
    assert ask(Rows(title="t", table="absent"), data, "s", 9) is None
    joined = {"title": "t", "table": "effects", "with": ["absent"]}
    assert ask(Rows.model_validate(joined), data, "s", 9) is None
    with pytest.raises(ContentsError, match=r"(?s)'Wrong'.*efect"):
        ask(Rows(title="Wrong", table="effects", columns=["efect"]), data, "s", 9)


def test_values_are_packed_as_json_with_six_digits():
    values = {
        "n": 12345,
        "x": 0.12345678,
        "e": 1.234567e9,
        "b": True,
        "none": None,
        "nan": float("nan"),
        "l": ["a", "b"],
    }
    frame = pl.DataFrame([values])
    assert packed(frame)["rows"] == [[12345, 0.123457, 1.23457e9, True, None, "nan", "a, b"]]
    assert packed(frame)["kinds"][:4] == ["number", "number", "number", "boolean"]


def test_a_page_that_is_too_large_is_an_error(built: Path, micro: Path, tmp_path: Path):
    assert (built / "reports/study.html").stat().st_size < REPORT["largest_mib"] * 2**20
    problem = r"more than report.largest_mib = 0.001.*neurons_drawn.*abacus/maps 0\.0"
    with pytest.raises(ParamsError, match=problem):
        bounded("x" * 1100, settings(largest_mib=0.001), {"abacus/maps": "x" * 1000})
    folder = project(micro, tmp_path / "small", largest_mib=0.01)
    run_in(folder, "python", "-m", "stages.report.subject", "planted")
    failed = run_in(folder, "python", "-m", "stages.report.index", check=False)
    assert failed.returncode == 1
    assert "report.largest_mib = 0.01" in failed.stderr
    assert not (folder / "reports/study.html").exists()


def test_settings_limit_rows_neurons_and_maps(micro: Path, tmp_path: Path):
    limits = {"rows": 3, "neurons_listed": 5, "neurons_drawn": 2, "promoted_numbers": 4}
    folder = project(micro, tmp_path / "few", **limits)
    run_in(folder, "python", "-m", "stages.report.subject", "abacus")
    table = payload(folder, "abacus", "tables")["neuron-effects"]
    rows = pl.DataFrame(table["rows"], table["columns"], orient="row")
    assert set(rows.group_by("operator").len()["len"]) == {3}
    for part in payload(folder, "abacus", "neurons")["operators"].values():
        assert len(part["neurons"]) == 5
        for place, neuron in enumerate(part["neurons"]):
            assert ("map" in neuron) == (place < 2)
            assert len(neuron["promoted"]) == 4


def test_labelled_neurons_come_first_and_labels_take_turns(built: Path):
    labels = pl.read_parquet(built / "data/planted/heuristics/labels.parquet")
    for operator, part in payload(built, "planted", "neurons")["operators"].items():
        names = [tuple(neuron["names"]) for neuron in part["neurons"]]
        labelled = labels.filter(operator=operator).select("layer", "neuron").n_unique()
        assert labelled > 0
        assert all(names[:labelled])
        assert not any(names[labelled:])
        turns = [names[:place].count(name) for place, name in enumerate(names[:labelled])]
        assert turns == sorted(turns)


def test_queries_on_the_page_run_in_the_console(built: Path, micro: Path):
    data, shown = connect(micro / "data", threads=1), payload(built, "abacus", "tables")
    names = list(filter(shown.get, shown))
    assert len(names) > 20
    for name in names:
        text, table = query(ITEMS[name]), shown[name]
        assert '"' not in text, f"{name}: the shell would end the query there"
        rows = packed(data.sql(text, subject="abacus").pl())["rows"]
        assert len(rows) == sum(table["found"].values())
        # the page has the first rows of each operator
        assert Counter(map(repr, table["rows"])) <= Counter(map(repr, rows))
        assert table["rows"]


def outputs() -> set[str]:
    """Return what all stages write, as dvc.yaml files declare it."""
    paths = set()
    for entry in stages().values():
        for out in entry.get("outs", []):
            paths.add(out if isinstance(out, str) else next(iter(out)))
    return paths


def writers(*pages: Contents) -> set[str]:
    """Return the stages that write the tables of pages, as files."""
    files = set()
    for page in pages:
        for item in page.items():
            if item.table in KNOWN:
                files.add(str(KNOWN[item.table].path.relative_to(ROOT)))
    return files


def file_of(name: str, subject: str) -> str:
    """Return the file or folder of a table, as dvc.yaml declares it."""
    made, chapter = outputs(), KNOWN[name].path.parent.name
    files = [f"data/{subject}{chapter}/{name}.parquet"]
    if subject:  # or a model's file among those of all
        files.append(f"data/{chapter}/{name}/${{key}}.parquet")
    return next(filter(made.__contains__, files), f"data/{chapter}/{name}")


@pytest.mark.parametrize(
    ("stage", "names", "pictures", "shown"),
    [
        (
            "report/report_data",
            [*OWN.tables(shared=False), *NEEDED],
            OWN.pictures(shared=False),
            set(),
        ),
        ("report", OWN.tables(shared=True), OWN.pictures(shared=True), writers(OWN)),
        (
            "report/study",
            [
                *OWN.tables(shared=True),
                *STUDY.tables(shared=True),
                *STUDY.tables(shared=False),
            ],
            CONTENTS.pictures(shared=True) + STUDY.pictures(shared=False),
            writers(OWN, STUDY),
        ),
    ],
    ids=["report_data", "report", "study"],
)
def test_dvc_yaml_declares_what_the_page_reads(
    stage: str,
    names: list[str],
    pictures: list[str],
    shown: set[str],
):
    subject = "${key}/" if stage == "report/report_data" else ""
    deps = set(stages()[stage]["deps"])
    files = {file_of(name, subject) for name in KNOWN.keys() & set(names)}
    of_tables = re.compile(r"data/.*\.parquet|data/(?!\$|report)[^.]*")
    assert files == set(filter(of_tables.fullmatch, deps))
    drawn = [dep.removesuffix(".svg") for dep in deps if dep.startswith("reports/")]
    for pattern in pictures:
        path = "reports/" + pattern.replace("{subject}", "${key}")
        assert path.startswith(tuple(drawn)), path
    assert deps >= shown


@pytest.mark.parametrize("subject", ["abacus", "planted"])
def test_a_stage_declares_what_it_reads_whatever_models_there_are(
    micro: Path,
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
):
    """In the lock: of a table with a file per model, the stage of a model reads its file alone."""
    monkeypatch.chdir(micro)
    names = [*OWN.tables(shared=False), *NEEDED]
    lock = yaml.safe_load(Path("stages/report/dvc.lock").read_text())["stages"]
    deps = {dep["path"] for dep in lock[f"report_data@{subject}"]["deps"]}
    read: list[Path] = []
    for paths in subject_files(subject, names).values():
        read += paths
    assert Path(f"data/claims/claims/{subject}.parquet") in read
    for path in read:
        assert deps & {str(path), *map(str, path.parents)}, path
