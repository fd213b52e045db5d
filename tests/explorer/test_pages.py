"""What pages do with errors, with each other's work and with data that change, on a project made by hand."""

import io
import logging
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.explorer import app, charts
from stages.explorer.app import answered, page, taken, tried
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS, View
from stages.explorer.parts import figure
from stages.explorer.project import ExplorerError
from stages.explorer.question import Question
from stages.lib import dictionary
from stages.lib.core.settings import ParamsError
from stages.lib.core.tables import write_table
from stages.lib.sql.missing import ways_to
from tests import declared
from tests.explorer.made import NEURONS, SIDE, explorer, made, write_activations
from tests.explorer.said import field, says, words


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These need no micro project."""


@pytest.fixture
def digits(tmp_path: Path) -> Explorer:
    return explorer(made(tmp_path))


def test_an_error_that_nobody_foresaw_is_a_sentence_and_its_place_is_in_the_log(digits: Explorer, caplog: pytest.LogCaptureFixture):
    def fails(*_: object) -> list:
        return [1 / 0]

    def refuses(*_: object) -> list:
        raise ParamsError("subjects.digits is missing")

    view = View("fails", "Fails", fails, fails)
    with caplog.at_level(logging.ERROR):
        assert "ZeroDivisionError: division by zero" in words(tried(view.content, digits, Question({})))
        assert "return [1 / 0]" in caplog.text
        fields, content = answered(digits, view, Question({"layer": 1}))
        assert fields == []
        assert '"role": "alert"' in words(content())
        assert "subjects.digits is missing" in words(tried(refuses, digits, Question({})))


def test_a_subject_stands_beside_itself(digits: Explorer):
    asked = Question({"subject": "digits", "other": "digits", "operator": "add"})
    assert '"role": "alert"' not in words(tried(VIEWS["compare"].later["more"], digits, asked))


def test_the_command_for_a_missing_table_names_a_stage_that_writes_it():
    """Of each subject where there is one for each, and of none where all share the table."""
    for table in dictionary.tables(declared.ROOT / "stages"):
        said = ways_to(table, "abacus")
        if table == "runs":  # several chapters have some
            assert "`make study` here" in said
            continue
        file, chapter, stage, at = re.search(r"`dvc repro (stages/(\w+)/\S*dvc\.yaml):(\w+)(@abacus)?` here", said).groups()
        assert file == declared.stages()[f"{chapter}/{stage}"]["file"], table
        assert any(table in path.replace(".", "/").split("/") for path in declared.written(f"{chapter}/{stage}")), table
        assert bool(at) == bool(declared.stages()[f"{chapter}/{stage}"]["foreach"]), table


def test_a_query_without_a_shared_table_names_its_stage_of_no_subject(digits: Explorer):
    with pytest.raises(ExplorerError, match=re.escape("`dvc repro stages/corpus/dvc.yaml:facts` here")):
        digits.project.ask("from facts")


@pytest.mark.parametrize("fields", [{"what": "sql"}, {"what": "cells"}, {"sql": "select 1 as accuracy"}, {}])
def test_what_a_page_shows_is_saved_though_nobody_filled_in_its_fields(digits: Explorer, fields: dict):
    data = digits.project.data / "digits/store"
    write_table(
        pl.DataFrame({"subject": "digits", "operator": "add", "accuracy": 0.9, "cells": 8, "split": "train"}), data / "accuracy.parquet"
    )
    keys = {"subject": ["digits"], "operator": ["add"], "layer": [0], "neuron": [3]}
    write_table(pl.DataFrame({**keys, "variance": [0.5], "rank": [1]}), data / "neuron_variances.parquet")
    there = explorer(digits.project.data)
    saved, said = pl.read_csv(io.BytesIO(taken(there, Question(fields).search(), "csv"))), says(there, "find", **fields)
    assert f'"{saved.height} row' in said
    assert all(f'"{name.replace("_", " ")}"' in said for name in saved.columns)


def test_the_subject_and_the_operator_of_a_query_go_along_with_it(digits: Explorer):
    """From every view, to where the query can be changed and on to what its rows are about; the default subject is another."""
    data = digits.project.data
    (data / "able/store").mkdir(parents=True)
    (data / "able/store/predictions.parquet").hardlink_to(data / "digits/store/predictions.parquet")
    write_table(pl.DataFrame({"subject": "digits", "operator": "add", "accuracy": 0.9, "cells": 8}), data / "digits/store/accuracy.parquet")
    there = explorer(data)
    assert there.project.subjects[0] == "able"
    chosen = {"subject": "digits", "operator": "add"}
    asked = {
        "prompt": {"prompt": "9+12"},
        "silence": {"prompt": "9+12", "neurons": "0:3"},
        "neuron": {"layer": 0, "neuron": 3},
        "find": {"what": "cells"},
        "compare": {"other": "digits"},
    }
    for path, fields in asked.items():
        question = Question(chosen | fields)
        parts = [answered(there, VIEWS[path], question)[1](), *(tried(make, there, question) for make in VIEWS[path].later.values())]
        edits = re.findall(r'"children": "edit and run", "href": "/find(\?[^"]*)"', words(parts))
        assert edits, path
        for search in edits:
            assert chosen.items() <= Question.parse(search).items(), path
    rows = Question(chosen | {"sql": "select 0 as layer, 3 as neuron"})
    assert Question({**chosen, "layer": 0, "neuron": 3}).search() in says(there, "find", **rows)


def test_what_is_silenced_is_shown_wherever_it_was_chosen_and_can_be_taken_back(digits: Explorer):
    """Neurons ticked and heuristics chosen on another subject or prompt, or by another way of counting; with a model and without one."""
    asked = {"subject": "digits", "prompt": "9+12", "ticked": "0:3|2:489"}
    for there, offered, more in ((digits, NEURONS, ["2:489"]), (Explorer(digits.project), 0, ["0:3", "2:489"])):
        ticked = field(there, "silence", "ticked", **asked)
        assert ticked.value == "0:3|2:489"
        assert [option["value"] for option in ticked.options][offered:] == more
        named = field(there, "silence", "heuristics", **asked, heuristics="result mod 7 = 1").options
        assert named[-1] == {"label": "result mod 7 = 1 (selected before; none here)", "value": "result mod 7 = 1"}
        said = says(there, "silence", **asked, neurons="0:1")
        assert "Ablated: 0:1, 0:3, 2:489. " in said
        [none] = re.findall(r'"children": "Ablate none of them", "href": "/silence(\?[^"]*)"', said)
        assert "Choose heuristics, or tick or write neurons." in says(there, "silence", **Question.parse(none))


def test_two_tabs_silence_neurons_and_neither_ends_the_work_of_the_other(digits: Explorer):
    def opens(neurons: str, before: dict | None = None) -> dict:
        search = Question({"subject": "digits", "prompt": "9+12", "neurons": neurons, "grid": "yes" if neurons else ""}).search()
        _, content, now, *_ = page(digits, "/silence", search, {}, before)
        assert ("Every cell" in words(content)) == bool(neurons)
        return now

    def silenced() -> set[tuple]:
        return {of.neurons for of in digits.jobs}

    with digits.models.lock:  # so that all work waits
        one, other = opens("0:1"), opens("0:2")
        first, second = digits.jobs.values()
        assert not first.stopped
        assert not second.stopped
        one = opens("0:3", one)
        assert (first.stopped, second.stopped, silenced()) == (True, False, {((0, 2),), ((0, 3),)})
        one = opens("0:2", one)  # which the other looks at, too
        assert silenced() == {((0, 2),)}
        opens("", one)
        assert not second.stopped
        assert digits.for_tab(other["tab"]).known() != digits.for_tab(one["tab"]).known()
    second.thread.join(timeout=60)
    assert second.done
    assert second.cells[0] == second.cells[1] > 0
    opens("", other)
    assert silenced() == {((0, 2),)}  # it is done, and kept


def test_a_page_is_about_the_data_as_they_are_on_disk_now(digits: Explorer):
    def shows(path: str, **fields: object) -> str:
        return words(page(digits, f"/{path}", Question(fields).search(), {}, None)[1])

    before, data, model = digits.project, digits.project.data, digits.models.ready("digits")
    says_of = {"sql": "select subject, any_value(answer_probability) as probability from predictions group by all"}
    keys = {"subject": "digits", "operator": "add", "layer": 0, "neuron": 3}
    assert '"0.9"' in shows("find", **says_of)
    assert "There is no table accuracy here." in shows("find", sql="from accuracy")
    assert "to 99 (red)" not in shows("neuron", **keys)
    assert digits.project is before  # nothing has changed, so nothing is opened again

    predictions = pl.read_parquet(data / "digits/store/predictions.parquet").with_columns(answer_probability=pl.lit(0.25))
    write_table(predictions, data / "digits/store/predictions.parquet")
    assert '"0.25"' in shows("find", **says_of)
    assert digits.models.ready("digits") is model  # which is made of other files
    assert model.project is digits.project
    write_table(pl.DataFrame({"accuracy": [0.75]}), data / "digits/store/accuracy.parquet")
    assert '"0.75"' in shows("find", sql="from accuracy")
    write_activations(data, np.full((NEURONS, SIDE, SIDE), 99.0))
    assert "to 99 (red)" in shows("neuron", **keys)
    (data / "able/store").mkdir(parents=True)
    write_table(predictions.with_columns(subject=pl.lit("able")), data / "able/store/predictions.parquet")
    shows("find")
    assert digits.project.subjects == ["able", "digits"]
    (data / "digits/store/accuracy.parquet").unlink()
    assert "There is no table accuracy here." in shows("find", sql="from accuracy")


def test_a_model_is_loaded_anew_once_what_it_is_made_of_has_changed(digits: Explorer):
    prompts = digits.project.data / "digits/store/prompts.parquet"
    assert digits.models.ready("digits")
    write_table(pl.read_parquet(prompts).with_columns(answer_token=pl.col("answer_token") + 1), prompts)
    digits.refresh()
    assert digits.models.ready("digits") is None
    assert digits.models.loading()


VALUES = ["'infinity'::date", "'-infinity'::timestamp", "'0044-03-15 (BC)'::date", "340282366920938463463374607431768211455::uhugeint",
          "interval 2000000000 months", "repeat('x', 2000000)", "range(100000)", "chr(0)", "'nan'::double"]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_any_value_is_shown_and_saved(digits: Explorer, value: str):
    for form in ("{}", "[{}]", "{{'a': [{}]}}", "map {{1: {}}}"):
        query = f"select {form.format(value)} as x"
        shown = says(digits, "find", sql=query)
        assert '"role": "alert"' not in shown
        assert len(shown) < 40_000
        for kind in ("csv", "parquet"):
            assert taken(digits, Question({"sql": query}).search(), kind)


def test_what_a_query_cannot_have_is_a_sentence(digits: Explorer):
    for number in ("1e999", "-1e999", "nan", "inf"):
        assert f"effect is '{number}'; " in says(digits, "find", what="neurons", effect=number)
    deep = says(digits, "find", sql=f"select {'(' * 5000}1{')' * 5000} from activations")
    assert '"role": "alert"' in deep
    assert "no subject 'digit' here; subjects here: digits" in says(digits, "find", sql="from predictions where subject = 'digit'")


def test_it_opens_on_what_can_be_shown(digits: Explorer):
    """On a prompt that the subject was asked, and beside a subject that has what is compared."""
    text = field(digits, "prompt", "prompt", subject="digits").value
    assert f"{text.replace('+', ' + ')} = " in says(digits, "prompt", subject="digits", prompt=text)
    data = digits.project.data
    for name in ("bare", "whole"):
        (data / name / "store").mkdir(parents=True)
        (data / name / "heuristics").mkdir()
        (data / name / "store/predictions.parquet").hardlink_to(data / "digits/store/predictions.parquet")
    write_table(
        pl.DataFrame({"subject": "whole", "operator": "add", "accuracy": 0.9, "cells": 8}),
        data / "whole/store/accuracy.parquet",
    )
    (data / "whole/heuristics/scores.parquet").hardlink_to(data / "digits/heuristics/scores.parquet")
    assert field(explorer(data), "compare", "other", subject="digits").value == "whole"
    assert field(explorer(data), "compare", "other", subject="whole").value == "whole"


def test_a_request_of_no_page_of_ours_is_refused(digits: Explorer):
    client = app.made(digits.project).server.test_client()
    for headers in ({"Origin": "http://["}, {"Host": "["}, {"Origin": "null"}):
        assert client.get("/", headers=headers).status_code in (400, 403)
    whole = {"output": "url.search", "inputs": [], "state": [], "changedPropIds": []}
    wrong = [whole | {name: value} for name in whole for value in (5, "x", None, [5], {"a": 1})]
    for body in (None, 5, "x", [], {}, *wrong):
        assert 400 <= client.post("/_dash-update-component", json=body).status_code < 500, body


def test_nothing_offers_to_send_a_figure_away(digits: Explorer):
    drawn = figure("name", {"data": [], "layout": {}}, "caption", "query")
    assert '"showSendToCloud": false' in words(drawn)


def test_neighbours_that_are_all_right_differ_by_their_probability():
    values = np.array([[0.999, 0.98], [np.nan, 1.0]])
    drawn = charts.heat(values, None, "")
    assert charts.sequential(drawn, values) == 0.98
    assert (drawn["data"][0]["zmin"], drawn["data"][0]["zmax"]) == (0.98, 1.0)
