"""Test the app without a browser: what it answers and refuses, and that no field can break it."""

import base64
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from stages.explorer import question
from stages.explorer.app import answered, made, tried
from stages.explorer.explore import PORTS, main, served
from stages.explorer.explorer import Explorer
from stages.explorer.pages import VIEWS
from stages.explorer.parts import filled
from stages.explorer.pictures import saved
from stages.explorer.project import ExplorerError, Project
from stages.explorer.question import Question
from tests.explorer.made import made as project_of
from tests.explorer.said import says, words
from tests.micro import ROOT

HOLDING = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
HARD = ["226-68", "3+4", "99999999", "-1", "1e9", "0", "'", "$x", "$0", "{op1}", "%s", "1:7"]
TEXT = st.text(max_size=30) | st.sampled_from([*HARD, "result in 0..9"])
PRINTABLE = st.text(min_size=1).filter(str.isprintable)
EXPLORE = "from stages.explorer.explore import main; main(['--no-browser', '--port', '0'])"
LISTENING = "0A"  # a state in /proc/net/tcp


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_opens_without_a_question(explorer: Explorer, path: str):
    explorer.models.wait("abacus")
    fields, content = answered(explorer, VIEWS[path], Question({}))
    text = words(content())
    assert '"role": "alert"' not in text
    assert '"H1"' in text
    complete = Question({field.name: field.value for field in fields})
    for later in VIEWS[path].later.values():
        assert '"H2"' in words(tried(later, explorer, complete))


def test_unticking_the_grid_stops_its_work(explorer: Explorer):
    explorer.models.wait("abacus")
    fields = {"subject": "abacus", "prompt": "3+9", "neurons": "1:7"}
    with explorer.models.lock:  # so that the work waits
        assert "cells" in says(explorer, "silence", **fields, grid="yes")
        [job] = explorer.jobs.values()
        assert "Every cell" not in says(explorer, "silence", **fields)
    job.thread.join(timeout=60)
    assert job.stopped
    assert job.cells == (0, 0)
    assert not explorer.jobs
    says(explorer, "silence", **fields, grid="yes")  # again, to its end
    [again] = explorer.jobs.values()
    again.thread.join(timeout=60)
    assert again.cells[0] == again.cells[1] > 0
    says(explorer, "silence", **fields)
    assert list(explorer.jobs.values()) == [again]


@pytest.mark.parametrize("path", VIEWS)
@HOLDING
@given(data=st.data())
def test_no_text_in_any_field_breaks_a_view(explorer: Explorer, path: str, data: st.DataObject):
    fields, _ = answered(explorer, VIEWS[path], Question({}))
    names = st.sampled_from([field.name for field in fields])
    text = says(explorer, path, **data.draw(st.dictionaries(names, TEXT)))
    assert '"H1"' in text or '"role": "alert"' in text


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("prompt", {"prompt": "what?"}, "is not a prompt; write two numbers"),
        ("prompt", {"prompt": "19*19"}, "is not a cell of abacus"),
        ("prompt", {"subject": "nobody"}, "choose one of abacus, "),
        ("neuron", {"layer": "x"}, "layer is 'x'; it must be a whole number from 0"),
        ("neuron", {"layer": "7"}, "have no layer 7; the store keeps the layers 0, 1"),
        ("neuron", {"neuron": "64"}, "has no neuron 64; choose a neuron from 0 to 63"),
        ("silence", {"neurons": "one"}, "'one' is not a neuron; write layer:neuron"),
        ("silence", {"neurons": "5:1"}, "layer 5 does not exist; the subject has the layers 0..1"),
        ("silence", {"neurons": "1:900"}, "neuron 900 does not exist; there are 0..63"),
        ("silence", {"heuristics": "result in 5"}, "no late neuron of abacus counts for 'result"),
        ("find", {"what": "neurons", "effect": "much"}, "effect is 'much'; it must be a number"),
        ("find", {"sql": "from nowhere"}, "Table with name nowhere does not exist"),
        ("find", {"sql": ""}, None),
        ("compare", {"other": "nobody"}, "choose one of abacus, "),
    ],
)
def test_an_error_is_a_message(explorer: Explorer, path: str, fields: dict, message: str | None):
    explorer.models.wait("abacus")
    if path == "silence":
        fields = {"prompt": "3+9", **fields}
    text = says(explorer, path, **fields)
    assert ('"role": "alert"' in text) == (message is not None)
    assert (message or "").replace('"', '\\"') in text


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('/etc/passwd')",
        "from '/etc/passwd'",
        "from glob('/*')",
        "copy cells to 'taken.csv'",
        "attach 'x.db'",
        "create table t as select 1",
        "drop table cells",
        "install httpfs",
        "set threads = 1",
        "select 1; select 2",
        "from read_parquet('params.yaml')",
        "from 'https://localhost/x.parquet'",
    ],
)
def test_a_query_reaches_nothing_but_tables(explorer: Explorer, query: str):
    before = set(os.listdir())
    assert '"role": "alert"' in says(explorer, "find", sql=query)
    assert set(os.listdir()) == before


def test_the_app_answers_only_its_own_pages(project: Project):
    client = made(project).server.test_client()
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page.text) == []
    foreign = "elsewhere.example"
    for headers in (
        {"Host": foreign},
        {"Origin": f"http://{foreign}"},
        {"Host": f"localhost.{foreign}"},
    ):
        assert client.get("/", headers=headers).status_code == 403
        callback = client.post("/_dash-update-component", json={}, headers=headers)
        assert callback.status_code == 403
    for path in (
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets//etc/passwd",
        "/_dash-component-suites/stages/explorer/app.py",
    ):
        answer = client.get(path)
        assert answer.status_code >= 300 or "def made" not in answer.text


@pytest.mark.parametrize(("path", "asks_again"), [("/prompt", 1), ("/find", 0)])
def test_a_page_that_waits_asks_once_more_after_each_answer(
    project: Project, path: str, asks_again: int
):
    """A browser drops an answer once it asks again: ticks faster than answers show nothing."""
    app = made(project)
    [tick] = [part for part in app.layout.children if getattr(part, "id", "") == "tick"]
    assert (tick.n_intervals, tick.max_intervals) == (0, 0)
    output = next(name for name in app.callback_map if "tick.max_intervals" in name)
    names = [text.split(".") for text in output.strip(".").split("...")]
    for ticks in (0, 7):
        request = {
            "output": output,
            "outputs": [{"id": name, "property": kind} for name, kind in names],
            "inputs": [
                {"id": "url", "property": "pathname", "value": path},
                {"id": "url", "property": "search", "value": ""},
                {"id": "tick", "property": "n_intervals", "value": ticks},
            ],
            "state": [[], [], {"id": "shown", "property": "data", "value": None}],
            "changedPropIds": [],
        }
        answer = app.server.test_client().post("/_dash-update-component", json=request)
        assert answer.json["response"]["tick"]["max_intervals"] == ticks + asks_again


def test_a_picture_keeps_its_query():
    query, page = "select '<&é>' from cells", "http://localhost/neuron?layer=1&neuron=2"
    out = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(out, "png")
    data = base64.b64encode(out.getvalue()).decode()
    read = Image.open(io.BytesIO(saved(f"data:image/png;base64,{data}", "png", query, page)))
    assert (read.text["Description"], read.text["Source"]) == (query, page)
    assert read.getpixel((1, 1)) == (255, 0, 0)
    drawing = "%3Csvg xmlns='http://www.w3.org/2000/svg'%3E%3Crect/%3E%3C/svg%3E"
    root = ElementTree.fromstring(saved(f"data:image/svg+xml,{drawing}", "svg", query, page))
    names = {"dc": "http://purl.org/dc/elements/1.1/"}
    assert root.find(".//dc:description", names).text == query
    assert root.find(".//dc:source", names).text == page


@pytest.mark.parametrize(
    "data",
    ["data:image/png;base64,AAAA", "data:image/png;base64,?", "data:text/html,<p>", ""],
)
def test_what_is_not_a_picture_is_refused(data: str):
    with pytest.raises(ExplorerError, match="not a picture"):
        saved(data, "png", "select 1", "http://localhost/")


@given(st.dictionaries(st.sampled_from(["prompt", "sql", "layer"]), PRINTABLE))
def test_an_address_keeps_the_fields(fields: dict[str, str]):
    assert dict(Question.parse(Question(fields).search())) == fields


@HOLDING
@given(text=st.text())
def test_a_text_in_a_query_stays_a_text(project: Project, text: str):
    text = text.replace("\0", "").encode(errors="ignore").decode()
    assert project.ask(filled("select $text as same", {"text": text})).item() == text


def test_a_dollar_in_a_text_is_not_a_parameter(explorer: Explorer):
    assert "'$0'" in says(explorer, "find", heuristic="$0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("226-68", ("subtract", 226, 68)),
        (" 3 × 4 = ", ("multiply", 3, 4)),
        ("8÷2", ("divide", 8, 2)),
    ],
)
def test_prompts_are_read_as_people_write_them(text: str, expected: tuple):
    symbols = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
    assert question.parse_prompt(text, symbols) == expected


def test_neurons_are_read_as_people_write_them():
    assert question.parse_neurons("2:489, 1:17;1:17\n0/3") == [(0, 3), (1, 17), (2, 489)]


def listeners(port: int) -> list[str]:
    """Return the local addresses that listen on a port, in hexadecimal."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = [row[1] for row in rows if row[3] == LISTENING]
    return list(filter(lambda address: address.endswith(f":{port:04X}"), addresses))


def test_it_listens_to_this_machine_and_ends_with_ctrl_c(micro: Path):
    with subprocess.Popen(
        [sys.executable, "-P", "-c", EXPLORE],
        cwd=micro,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        [address] = re.findall(r"http://localhost:\d+/", running.stdout.readline())
        assert "bag explore" in urlopen(address).read().decode()
        port = int(address.rstrip("/").rpartition(":")[2])
        assert listeners(port) == [f"0100007F:{port:04X}"]
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=20)
    assert running.returncode == 0
    assert error.strip() == ""


def test_a_folder_without_tables_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="no model has predictions in"):
        main(["--no-browser"])


def test_a_port_that_is_taken_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture):
    """By default, the app takes the next port without a word."""
    project = Project(project_of(tmp_path))
    first, second = served(project, None), served(project, None)
    assert PORTS.start <= first.port < second.port
    with pytest.raises(
        ExplorerError, match=f"cannot listen on port {first.port}: .*in use; choose"
    ):
        served(project, first.port)
    first.server_close()
    second.server_close()
    assert capfd.readouterr() == ("", "")


def test_a_wrong_port_is_an_error(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        main(["--port", "x"])
    assert "invalid port 'x'; choose a whole number from 0 to 65535" in capsys.readouterr().err
