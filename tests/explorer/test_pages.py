"""Test pages with errors, with other tabs and with data that change, on a project made by hand."""

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
from stages.explorer.jobs import GridJob
from stages.explorer.pages import VIEWS, View
from stages.explorer.parts import figure
from stages.explorer.project import ExplorerError
from stages.explorer.question import Question
from stages.explorer.views import prompt
from stages.lib import dictionary
from stages.lib.core.settings import ParamsError
from stages.lib.sql.missing import ways_to
from tests import declared
from tests.explorer.made import NEURONS, SIDE, explorer, made, put, write_activations
from tests.explorer.said import field, says, words

ALERT = '"role": "alert"'
ACCURACY = pl.DataFrame({"subject": "digits", "operator": "add", "accuracy": 0.9, "cells": 8})
STAGE = re.compile(r"`dvc repro (stages/(\w+)/\S*dvc\.yaml):(\w+)(@abacus)?` here")
EDIT = re.compile(r'"children": "edit and run", "href": "/find(\?[^"]*)"')


@pytest.fixture(autouse=True)
def in_root() -> None:
    """These tests need no micro project."""


@pytest.fixture
def digits(tmp_path: Path) -> Explorer:
    return explorer(made(tmp_path))


def copied(data: Path, place: str, subject: str) -> None:
    """Give a model a table of the model digits."""
    file = data / f"{subject}/{place}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.hardlink_to(data / f"digits/{place}.parquet")


def test_an_unforeseen_error_is_a_message_and_its_place_is_in_the_log(
    digits: Explorer,
    caplog: pytest.LogCaptureFixture,
):
    def fails(*_: object) -> list:
        return [1 / 0]

    def refuses(*_: object) -> list:
        raise ParamsError("subjects.digits is missing")

    view = View("fails", "Fails", fails, fails)
    with caplog.at_level(logging.ERROR):
        content = tried(view.content, digits, Question({}))
        assert "ZeroDivisionError: division by zero" in words(content)
        assert "return [1 / 0]" in caplog.text
        fields, make = answered(digits, view, Question({"layer": 1}))
        assert fields == []
        assert ALERT in words(make())
        assert "subjects.digits is missing" in words(tried(refuses, digits, Question({})))


def test_a_model_can_be_compared_with_itself(digits: Explorer):
    question = Question({"subject": "digits", "other": "digits", "operator": "add"})
    assert ALERT not in words(tried(VIEWS["compare"].later["more"], digits, question))


@pytest.mark.parametrize("table", dictionary.tables(declared.ROOT / "stages"))
def test_the_command_for_a_missing_table_names_a_stage_that_writes_it(table: str):
    """It names the model if there is a stage for each model."""
    way = ways_to(table, "abacus")
    if way.endswith(" only."):  # made for other models
        [names] = re.findall(r"makes it for the models (.*) only", way)
        assert "abacus" not in names.split(", ")
        return
    if table == "runs":  # several chapters write it
        assert "`make study` here" in way
        return
    file, chapter, stage, at = STAGE.search(way).groups()
    entry = declared.stages()[f"{chapter}/{stage}"]
    assert file == entry["file"]
    written = "/".join(declared.written(f"{chapter}/{stage}"))
    assert table in written.replace(".", "/").split("/")
    assert bool(at) == bool(entry["foreach"])


@pytest.mark.parametrize("table", ["neuron_effects", "spectra", "discovered"])
def test_no_command_is_given_for_a_stage_that_a_model_does_not_have(table: str):
    """Checkpoints of training have few tables."""
    way = ways_to(table, "abacus-step-01000")
    assert re.search(r"^The stage \w+ makes it for the models abacus, .* only\.$", way)
    assert "dvc repro" not in way
    assert "dvc repro" in ways_to(table, "a-model-that-came-with-pulled-tables")


def test_a_query_without_a_shared_table_names_its_stage_without_a_model(digits: Explorer):
    stage = re.escape("`dvc repro stages/corpus/dvc.yaml:facts` here")
    with pytest.raises(ExplorerError, match=stage):
        digits.project.ask("from facts")


@pytest.mark.parametrize(
    "fields",
    [{"what": "sql"}, {"what": "cells"}, {"sql": "select 1 as accuracy"}, {}],
)
def test_a_page_whose_fields_are_defaults_is_saved_as_shown(digits: Explorer, fields: dict):
    data = digits.project.data
    put(data, "digits/store/accuracy", ACCURACY.with_columns(split=pl.lit("train")))
    variances = {"subject": "digits", "operator": "add", "layer": 0, "neuron": 3, "variance": 0.5}
    put(data, "digits/store/neuron_variances", pl.DataFrame(variances | {"rank": 1}))
    new = explorer(data)
    saved = pl.read_csv(io.BytesIO(taken(new, Question(fields).search(), "csv")))
    shown = says(new, "find", **fields)
    assert f'"{saved.height} row' in shown
    for name in saved.columns:
        assert f'"{name.replace("_", " ")}"' in shown


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("prompt", {"prompt": "9+12"}),
        ("silence", {"prompt": "9+12", "neurons": "0:3"}),
        ("neuron", {"layer": 0, "neuron": 3}),
        ("find", {"what": "cells"}),
        ("compare", {"other": "digits"}),
    ],
)
def test_a_query_takes_the_model_and_the_operator_along(
    digits: Explorer,
    path: str,
    fields: dict,
):
    """From every view, to where the query can be changed; the default model is another."""
    data = digits.project.data
    copied(data, "store/predictions", "able")
    put(data, "digits/store/accuracy", ACCURACY)
    new = explorer(data)
    assert new.project.subjects[0] == "able"
    keys = {"subject": "digits", "operator": "add"}
    question = Question(keys | fields)
    _, content = answered(new, VIEWS[path], question)
    parts = [content()]
    for make in VIEWS[path].later.values():
        parts.append(tried(make, new, question))
    addresses = EDIT.findall(words(parts))
    assert addresses
    for address in addresses:
        assert keys.items() <= Question.parse(address).items()


def test_rows_of_a_query_link_to_its_model_and_operator(digits: Explorer):
    keys = {"subject": "digits", "operator": "add"}
    neuron = Question({**keys, "layer": 0, "neuron": 3}).search()
    assert neuron in says(digits, "find", **keys, sql="select 0 as layer, 3 as neuron")


@pytest.mark.parametrize("is_loaded", [True, False])
def test_ablated_neurons_of_another_prompt_are_shown_and_can_be_taken_back(
    digits: Explorer,
    is_loaded: bool,
):
    """So are heuristics of another model, or by another criterion."""
    new = digits if is_loaded else Explorer(digits.project)
    question = {"subject": "digits", "prompt": "9+12", "ticked": "0:3|2:489"}
    ticked = field(new, "silence", "ticked", **question)
    assert ticked.value == "0:3|2:489"
    values = [option["value"] for option in ticked.options]
    assert values[-1] == "2:489"
    assert values.count("0:3") == 1
    assert len(values) == (NEURONS + 1 if is_loaded else 2)
    name = "result mod 7 = 1"
    named = field(new, "silence", "heuristics", **question, heuristics=name).options
    assert named[-1] == {"label": f"{name} (selected before; none here)", "value": name}
    shown = says(new, "silence", **question, neurons="0:1")
    assert "Ablated: 0:1, 0:3, 2:489. " in shown
    pattern = r'"children": "Ablate none of them", "href": "/silence(\?[^"]*)"'
    [none] = re.findall(pattern, shown)
    content = says(new, "silence", **Question.parse(none))
    assert "Choose heuristics, or tick or write neurons." in content


def opens(digits: Explorer, neurons: str, before: dict | None = None) -> dict:
    """Open the grid of some neurons in a tab, or a page without a grid; return the tab's state."""
    fields = {"subject": "digits", "prompt": "9+12", "neurons": neurons, "grid": "yes"}
    if not neurons:
        del fields["grid"]
    _, content, now, *_ = page(digits, "/silence", Question(fields).search(), {}, before)
    assert ("Every cell" in words(content)) == bool(neurons)
    return now


def jobs(digits: Explorer) -> dict[int, GridJob]:
    """Return the work on grids, by the neuron that is ablated."""
    return {ablation.neurons[0][1]: job for ablation, job in digits.jobs.items()}


def test_no_tab_ends_the_work_of_another(digits: Explorer):
    with digits.models.lock:  # so that all work waits
        first, second = opens(digits, "0:1"), opens(digits, "0:2")
        one_grid, other_grid = jobs(digits)[1], jobs(digits)[2]
        assert not one_grid.stopped
        assert not other_grid.stopped
        first = opens(digits, "0:3", first)
        assert one_grid.stopped
        assert not other_grid.stopped
        assert jobs(digits).keys() == {2, 3}
        first = opens(digits, "0:2", first)  # the grid of the second tab, too
        assert jobs(digits).keys() == {2}
        opens(digits, "", first)
        assert not other_grid.stopped
        known = digits.for_tab(second["tab"]).known()
        assert known != digits.for_tab(first["tab"]).known()
    other_grid.thread.join(timeout=60)
    assert other_grid.done
    assert other_grid.cells[0] == other_grid.cells[1] > 0
    opens(digits, "", second)
    assert jobs(digits).keys() == {2}  # it is done, and kept


def shows(digits: Explorer, path: str, **fields: object) -> str:
    """Return what a new page shows."""
    _, content, *_ = page(digits, f"/{path}", Question(fields).search(), {}, None)
    return words(content)


def test_a_page_shows_the_tables_as_they_are_on_disk_now(digits: Explorer):
    before, data, model = digits.project, digits.project.data, digits.models.ready("digits")
    query = "select any_value(answer_probability) as probability from predictions group by subject"
    assert '"0.9"' in shows(digits, "find", sql=query)
    assert "There is no table accuracy here." in shows(digits, "find", sql="from accuracy")
    assert digits.project is before  # nothing has changed, so nothing is opened again

    predictions = pl.read_parquet(data / "digits/store/predictions.parquet")
    predictions = predictions.with_columns(answer_probability=pl.lit(0.25))
    put(data, "digits/store/predictions", predictions)
    assert '"0.25"' in shows(digits, "find", sql=query)
    assert digits.models.ready("digits") is model  # it is made of other files
    assert model.project is digits.project

    put(data, "digits/store/accuracy", pl.DataFrame({"accuracy": [0.75]}))
    assert '"0.75"' in shows(digits, "find", sql="from accuracy")
    put(data, "able/store/predictions", predictions.with_columns(subject=pl.lit("able")))
    shows(digits, "find")
    assert digits.project.subjects == ["able", "digits"]
    (data / "digits/store/accuracy.parquet").unlink()
    assert "There is no table accuracy here." in shows(digits, "find", sql="from accuracy")


def test_a_page_shows_the_activations_as_they_are_on_disk_now(digits: Explorer):
    keys = {"subject": "digits", "operator": "add", "layer": 0, "neuron": 3}
    assert "to 99 (red)" not in shows(digits, "neuron", **keys)
    write_activations(digits.project.data, np.full((NEURONS, SIDE, SIDE), 99.0))
    assert "to 99 (red)" in shows(digits, "neuron", **keys)


def test_a_model_is_loaded_again_after_its_files_have_changed(digits: Explorer):
    data = digits.project.data
    prompts = pl.read_parquet(data / "digits/store/prompts.parquet")
    assert digits.models.ready("digits")
    put(data, "digits/store/prompts", prompts.with_columns(pl.col("answer_token") + 1))
    digits.refresh()
    assert digits.models.ready("digits") is None
    assert digits.models.loading()


VALUES = [
    "'infinity'::date",
    "'-infinity'::timestamp",
    "'0044-03-15 (BC)'::date",
    "340282366920938463463374607431768211455::uhugeint",
    "interval 2000000000 months",
    "repeat('x', 2000000)",
    "range(100000)",
    "chr(0)",
    "'nan'::double",
]


@pytest.mark.parametrize("value", VALUES)
def test_any_value_is_shown_and_saved(digits: Explorer, value: str):
    for form in ("{}", "[{}]", "{{'a': [{}]}}", "map {{1: {}}}"):
        query = f"select {form.format(value)} as x"
        shown = says(digits, "find", sql=query)
        assert ALERT not in shown
        assert len(shown) < 40_000
        for kind in ("csv", "parquet"):
            assert taken(digits, Question({"sql": query}).search(), kind)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "nan", "inf"])
def test_a_number_without_limit_is_an_error(digits: Explorer, number: str):
    shown = says(digits, "find", what="neurons", effect=number)
    assert f"effect is '{number}'; " in shown


def test_an_impossible_query_is_an_error(digits: Explorer):
    deep = f"select {'(' * 5000}1{')' * 5000} from activations"
    assert ALERT in says(digits, "find", sql=deep)
    shown = says(digits, "find", sql="from predictions where subject = 'digit'")
    assert "no subject 'digit' here; subjects here: digits" in shown


def test_the_explorer_opens_on_a_prompt_of_the_model(digits: Explorer):
    text = field(digits, "prompt", "prompt", subject="digits").value
    shown = says(digits, "prompt", subject="digits", prompt=text)
    assert f"{text.replace('+', ' + ')} = " in shown


def test_a_comparison_opens_with_a_model_that_has_the_tables(digits: Explorer):
    data = digits.project.data
    copied(data, "store/predictions", "bare")
    copied(data, "store/predictions", "whole")
    copied(data, "heuristics/scores", "whole")
    put(data, "whole/store/accuracy", ACCURACY)
    new = explorer(data)
    assert field(new, "compare", "other", subject="digits").value == "whole"
    assert field(new, "compare", "other", subject="whole").value == "whole"


@pytest.mark.parametrize("headers", [{"Origin": "http://["}, {"Host": "["}, {"Origin": "null"}])
def test_a_request_from_another_page_is_refused(digits: Explorer, headers: dict):
    client = app.made(digits.project).server.test_client()
    assert client.get("/", headers=headers).status_code in (400, 403)


def test_a_request_that_no_page_sends_is_refused(digits: Explorer):
    client = app.made(digits.project).server.test_client()
    whole = {"output": "url.search", "inputs": [], "state": [], "changedPropIds": []}
    bodies = [None, 5, "x", [], {}]
    for name in whole:
        bodies += [whole | {name: value} for value in (5, "x", None, [5], {"a": 1})]
    for body in bodies:
        answer = client.post("/_dash-update-component", json=body)
        assert 400 <= answer.status_code < 500, body


def test_no_button_sends_a_figure_away():
    drawn = figure("name", {"data": [], "layout": {}}, "caption", "query")
    assert '"showSendToCloud": false' in words(drawn)


def test_neighbours_that_are_all_right_differ_by_their_probability():
    values = np.array([[0.999, 0.98], [np.nan, 1.0]])
    drawn = charts.heat(values, None, "")
    assert charts.sequential(drawn, values) == 0.98
    assert (drawn["data"][0]["zmin"], drawn["data"][0]["zmax"]) == (0.98, 1.0)


def test_an_address_that_is_too_long_is_refused_rather_than_cut(digits: Explorer):
    """Without its end, a list of neurons would be another one."""
    neurons = ", ".join(f"0:{number}" for number in range(3000))
    search = Question({"subject": "digits", "prompt": "9+12", "neurons": neurons}).search()
    problem = f"the address has {len(search) - 1:,} characters, at most 20,000 are allowed"
    _, content, state, *_ = page(digits, "/silence", search, {}, None)
    assert problem in words(content)
    _, content, *_ = page(digits, "/silence", "", state["fields"], state)
    assert problem not in words(content)
    with pytest.raises(ExplorerError, match=problem):
        taken(digits, search, "csv")


def test_models_that_lack_tables_are_compared_by_the_others(digits: Explorer):
    """The cells that one gets right and the other wrong need neither scores nor accuracies."""
    data = digits.project.data
    predictions = pl.read_parquet(data / "digits/store/predictions.parquet")
    wrong = predictions.with_columns(pl.lit("able").alias("subject"), correct=False)
    put(data, "able/store/predictions", wrong)
    put(data, "digits/store/accuracy", ACCURACY)
    question = Question({"subject": "digits", "other": "able", "operator": "add"})
    new = explorer(data)
    _, content = answered(new, VIEWS["compare"], question)
    shown = words(content())
    assert "able has no table accuracy here." in shown
    assert "The same neuron" in shown
    more = words(tried(VIEWS["compare"].later["more"], new, question))
    assert "able has no table scores here." in more
    assert "prediction of able" in more


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (None, (0, "neurons of all layers (late layers are unknown)")),
        ([None], (0, "neurons of all layers (the model has no late layers)")),
        ([2], (2, "late neurons")),
    ],
)
def test_neurons_are_called_late_only_if_late_layers_are_known(
    digits: Explorer,
    rows: list | None,
    expected: tuple[int, str],
):
    data = digits.project.data
    if rows is not None:
        columns = {"subject": "digits", "first_layer": pl.Series(rows, dtype=pl.Int16)}
        put(data, "digits/store/late_layers", pl.DataFrame(columns))
    assert prompt.first_layer(explorer(data).project, "digits") == expected
