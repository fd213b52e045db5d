"""What the report shows: the rows and pictures that each chapter asks for, small maps of neurons, and a bounded page."""

import base64
import json
import re
import shutil
import zlib
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
from stages.report.page.contents import Item, Rows, contents
from stages.report.page.html import bounded
from stages.report.page.rows import ContentsError, ask, database, packed, places, query
from stages.report.settings import Report
from stages.report.subject import NEEDED
from tests.conftest import run_in
from tests.declared import stages
from tests.micro import ROOT
from tests.report.browsing import REPORT, project

CONTENTS = contents()
ITEMS = {item.id: item for item in CONTENTS.items()}
KNOWN = tables(ROOT / "stages")


def settings(**changes: Any) -> Report:
    return check(Report, REPORT | changes, "report")


@pytest.fixture
def built(page: Path) -> Path:
    """The project in which the page was built."""
    return page.parents[1]


def payload(built: Path, subject: str, name: str) -> Any:
    packed_up = json.loads((built / f"data/report/{subject}.json").read_text())["payloads"][name]
    return json.loads(zlib.decompress(base64.b64decode(packed_up)))


def test_the_page_of_one_subject_has_nothing_of_another(built: Path, micro: Path, tmp_path: Path):
    folder = project(micro, tmp_path / "one")
    shutil.copytree(built / "data/report", folder / "data/report")
    run_in(folder, "python", "-m", "stages.report.index", "planted")
    assert [path.name for path in (folder / "reports").glob("*.html")] == ["index.html"]
    one, every = (page.read_text() for page in (folder / "reports/index.html", built / "reports/study.html"))
    subjects = {page: set(re.findall(r'data-payload="([^/"]+)/', page)) - {"shared"} for page in (one, every)}
    assert subjects[one] == {"planted"} < subjects[every]
    compared = [item.title for item in CONTENTS.only(study=True).items()]
    assert len(compared) > 3
    assert not [title for title in compared if f">{title}</h3>" in one]
    assert all(f">{title}</h3>" in every for title in compared)
    [packed_up] = re.findall(r'data-payload="abacus/study">([^<]+)<', every)
    rows = json.loads(zlib.decompress(base64.b64decode(packed_up)))["tables"]
    assert all(rows[item]["rows"] for item in ("trajectory-table", "finetuned", "study-claims"))


def test_ids_are_unique_and_say_what_they_lead_to():
    ids = [part.id for part in CONTENTS.sections] + list(ITEMS)
    assert len(ids) == len(set(ids)) == len(CONTENTS.sections) + sum(len(part.items) for part in CONTENTS.sections)


def test_sections_are_those_of_the_chapters_in_the_order_of_the_data():
    files = {file.parent.name: yaml.safe_load(file.read_text()) for file in (ROOT / "stages").glob("*/page.yaml")}
    assert files.keys() <= set(CHAPTERS)
    assert [part.id for part in CONTENTS.sections] == [part["id"] for chapter in CHAPTERS for part in files.get(chapter, [])]


def test_every_figure_that_is_declared_is_drawn(micro: Path):
    for item in ITEMS.values():
        for picture in item.figures:
            path = micro / "reports" / picture.path.format(subject="abacus", operator="add")
            assert path.with_suffix(".svg").exists(), f"{item.id}: {path}"
            assert path.with_suffix(".png").exists(), f"{item.id}: {path}"


@pytest.mark.parametrize("item", [item for item in ITEMS.values() if item.table and item.table in KNOWN], ids=lambda i: i.id)
def test_an_item_only_names_columns_that_its_table_has(item: Item):
    """An empty table of the documented columns answers the item's query."""
    made = [f'create table "{t}" ({", ".join(f"{name!r} {kind}" for name, (kind, _) in KNOWN[t].columns.items())})' for t in item.tables]
    connection = duckdb.connect()
    for statement in made:
        connection.execute(statement.replace("'", '"'))
    shown = connection.sql(query(item, item.shared).replace("$subject", "'s'"))
    assert set(item.shares) <= set(shown.columns)


def put(table: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Database:
    """What the report's stages see of a project in which the subject s has this table, called effects, and no other."""
    (folder / "data/s/neurons").mkdir(parents=True)
    table.write_parquet(folder / "data/s/neurons/effects.parquet")
    monkeypatch.chdir(folder)
    assert places(["effects", "absent"], "s") == {"effects": "data/s/neurons/effects.parquet"}
    return database(["effects", "absent"], "s")


def test_rows_are_the_tables_first_of_each_operator_by_the_items_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    table = pl.DataFrame({"subject": "s", "operator": ["add"] * 50 + ["divide"] * 3, "neuron": range(53), "effect": rng.integers(0, 9, 53)})
    of = put(table.sample(fraction=1, shuffle=True, seed=1), monkeypatch, tmp_path)
    wanted = Rows.model_validate({"title": "t", "table": "effects", "where": "effect > 1", "sort": "effect desc"})
    found, counts = ask(wanted, of, "s", 5)
    kept = table.drop("subject").filter(pl.col("effect") > 1)
    first = [part.sort("effect", "operator", "neuron", descending=[True, False, False]).head(5) for part in kept.partition_by("operator")]
    assert found.equals(pl.concat(first).sort("effect", "operator", "neuron", descending=[True, False, False]))
    assert counts == {name: kept.filter(operator=name).height for name in ("add", "divide")}


def test_an_absent_table_is_none_and_a_wrong_column_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    of = put(pl.DataFrame({"subject": ["s"], "effect": [1.0]}), monkeypatch, tmp_path)
    assert ask(Rows(title="t", table="absent"), of, "s", 9) is None
    assert ask(Rows.model_validate({"title": "t", "table": "effects", "with": ["absent"]}), of, "s", 9) is None
    with pytest.raises(ContentsError, match=r"(?s)'Wrong'.*efect"):
        ask(Rows(title="Wrong", table="effects", columns=["efect"]), of, "s", 9)


def test_values_are_packed_as_json_with_four_digits():
    frame = pl.DataFrame(
        {"n": [12345], "x": [0.123456], "e": [1.234567e9], "b": [True], "none": [None], "nan": [float("nan")], "l": [["a", "b"]]}
    )
    assert packed(frame)["rows"] == [[12345, 0.1235, 1.235e9, True, None, "nan", "a, b"]]
    assert packed(frame)["kinds"][:4] == ["number", "number", "number", "boolean"]


def test_the_page_is_bounded_and_says_what_to_lower(built: Path, micro: Path, tmp_path: Path):
    size = (built / "reports/study.html").stat().st_size
    assert size < REPORT["largest_mib"] * 2**20
    with pytest.raises(ParamsError, match=r"more than report.largest_mib = 0.001.*neurons_drawn.*abacus/maps 0\.0"):
        bounded("x" * 1100, settings(largest_mib=0.001), {"abacus/maps": "x" * 1000})
    folder = project(micro, tmp_path / "small", largest_mib=0.01)
    run_in(folder, "python", "-m", "stages.report.subject", "planted")
    failed = run_in(folder, "python", "-m", "stages.report.index", check=False)
    assert failed.returncode == 1
    assert "report.largest_mib = 0.01" in failed.stderr
    assert not (folder / "reports/study.html").exists()


def test_fewer_rows_neurons_and_maps_are_what_the_settings_say(micro: Path, tmp_path: Path):
    folder = project(micro, tmp_path / "few", rows=3, neurons_listed=5, neurons_drawn=2, votes=4)
    run_in(folder, "python", "-m", "stages.report.subject", "abacus")
    shown = payload(folder, "abacus", "tables")["neuron-effects"]
    operators = [row[0] for row in shown["rows"]]
    assert {name: operators.count(name) for name in operators} == dict.fromkeys(sorted(set(operators)), 3)
    for part in payload(folder, "abacus", "neurons")["operators"].values():
        assert [("map" in neuron, len(neuron["votes"])) for neuron in part["neurons"]] == [(True, 4)] * 2 + [(False, 4)] * 3


def test_neurons_with_a_name_come_first_and_names_take_turns(built: Path):
    labels = pl.read_parquet(built / "data/planted/heuristics/labels.parquet")
    for operator, part in payload(built, "planted", "neurons")["operators"].items():
        own = labels.filter(operator=operator)
        names = [tuple(neuron["names"]) for neuron in part["neurons"]]
        labelled = own.select("layer", "neuron").n_unique()
        assert labelled > 0
        assert [bool(name) for name in names] == [place < labelled for place in range(len(names))]
        turns = [names[:place].count(name) for place, name in enumerate(names) if name]
        assert turns == sorted(turns)


def test_queries_on_the_page_can_be_asked_in_the_console(built: Path, micro: Path):
    of = connect(micro / "data", threads=1)
    shown = payload(built, "abacus", "tables")
    asked = [item for item in ITEMS.values() if not item.shared and shown.get(item.id)]
    assert len(asked) > 20
    for item in asked:
        assert '"' not in query(item), f"{item.id}: the shell would end the query there"
        rows = packed(of.sql(query(item), subject="abacus").pl())["rows"]
        assert len(rows) == sum(shown[item.id]["found"].values())
        assert sorted(map(repr, shown[item.id]["rows"])) == sorted(map(repr, rows)) or len(shown[item.id]["rows"]) < len(rows)


def test_dvc_yaml_declares_what_the_page_reads():
    made = {out if isinstance(out, str) else next(iter(out)) for entry in stages().values() for out in entry.get("outs", [])}
    texts, pages = {}, {study: CONTENTS.only(study) for study in (False, True)}
    for study, page in pages.items():
        texts[study] = {str(KNOWN[item.table].path.relative_to(ROOT)) for item in page.items() if item.table in KNOWN}
    shared = pages[False].tables(shared=True)
    listed = {
        "report/report_data": ([*pages[False].tables(shared=False), *NEEDED], pages[False].pictures(shared=False), set()),
        "report": (shared, pages[False].pictures(shared=True), texts[False]),
        "report/study": (
            [*shared, *pages[True].tables(shared=True), *pages[True].tables(shared=False)],
            CONTENTS.pictures(shared=True) + pages[True].pictures(shared=False),
            texts[False] | texts[True],
        ),
    }
    for stage, (names, pictures, shown) in listed.items():
        subject = "${key}/" if stage == "report/report_data" else ""
        deps = set(stages()[stage]["deps"])
        chapters = {name: KNOWN[name].path.parent.name for name in names if name in KNOWN}
        own = {name: {f"data/{subject}{of}/{name}.parquet"} for name, of in chapters.items()}
        if subject:  # or a subject's file among those of all
            own = {name: {*files, f"data/{chapters[name]}/{name}/${{key}}.parquet"} for name, files in own.items()}
        of_all = {f"data/{chapters[name]}/{name}" for name, files in own.items() if not files & made}
        assert set().union(*own.values()) & made == {d for d in deps if d.endswith(".parquet")}
        assert of_all == {d for d in deps if "." not in d and re.match(r"data/(?!\$|report)", d)}, stage
        for pattern in pictures:
            path = "reports/" + pattern.replace("{subject}", "${key}")
            assert any(path.startswith(d.removesuffix(".svg")) for d in deps if d.startswith("reports/")), f"{stage} does not list {path}"
        assert deps >= shown, stage


def test_what_is_read_of_a_subject_is_declared_whoever_else_is_there(micro: Path, monkeypatch: pytest.MonkeyPatch):
    """In the files themselves: of tables that are folders with a file per subject, no stage of one subject sees another's."""
    monkeypatch.chdir(micro)
    names = [*CONTENTS.only(False).tables(shared=False), *NEEDED]
    lock = yaml.safe_load(Path("stages/report/dvc.lock").read_text())["stages"]
    for subject in ("abacus", "planted"):
        deps = [dep["path"] for dep in lock[f"report_data@{subject}"]["deps"]]
        read = {str(path) for paths in subject_files(subject, names).values() for path in paths}
        assert f"data/claims/claims/{subject}.parquet" in read
        assert [path for path in read if not any(path == dep or path.startswith(dep + "/") for dep in deps)] == []
