"""Benchmark the explorer on the default subject: how long it takes to open, and each view."""

import re
import subprocess
import sys
import tempfile
import time
from functools import partial

from selenium import webdriver

from stages.explorer import jobs
from stages.explorer.app import answered, tried
from stages.explorer.explorer import Explorer
from stages.explorer.live import Live
from stages.explorer.pages import VIEWS
from stages.explorer.project import Project
from stages.explorer.question import Question
from stages.explorer.views import silence
from tests.bench.timing import median
from tests.report.browsing import CHROMIUM, DRIVER, FLAGS

ROUNDS = 5
QUESTIONS = {
    "prompt": {"prompt": "226-68"},
    "silence": {"prompt": "226-68", "neurons": "2:312, 2:347, 2:243"},
    "neuron": {"layer": 2, "neuron": 489, "outline": "result in 297..396"},
    "find": {"heuristic": "result mod 5"},
    "compare": {"other": "abacus-step-01000", "layer": 2, "neuron": 489},
}


def explorer() -> None:
    """Measure how long pages take to make.

    Bars: opening 3 s, a view with its later parts 500 ms, a map 100 ms, an ablated prompt 300 ms.
    """
    server = Explorer(Project())
    subject, project = server.project.subjects[0], server.project
    live = server.models.wait(subject)
    for path, fields in QUESTIONS.items():
        first, whole = median(
            ROUNDS,
            partial(_view, server, path, Question(fields)),
            partial(_view, server, path, Question(fields), later=True),
        )
        _report(f"the view {path}: {1000 * first:.0f} ms, whole {1000 * whole:.0f} ms (bar 500)")
    numbers = iter(range(1000))
    [seconds] = median(20, lambda: project.map(subject, "add", 2, next(numbers) % 512))
    _report(f"a neuron's map: {1000 * seconds:.1f} ms (bar 100)")
    [seconds] = median(ROUNDS, lambda: _silenced(live, subject))
    prompt = f"an ablated prompt, and {silence.DRAWS} random sets"
    _report(f"{prompt}: {1000 * seconds:.0f} ms (bar 300)")
    _report(f"from the command to the first view in Chromium: {_opened():.1f} s (bar 3)")


def _report(figure: str) -> None:
    print(f"explorer: {figure}")


def _view(server: Explorer, path: str, question: Question, later: bool = False) -> str:
    """Return the bytes that the server sends for a view; later: with the parts that follow."""
    from plotly.io.json import to_json_plotly

    view = VIEWS[path]
    fields, content = answered(server, view, question)
    parts = [content()]
    if later:
        values = {field.name: field.value for field in fields}
        for make in view.later.values():
            parts.append(tried(make, server, Question(values)))
    return "".join(map(to_json_plotly, parts))


def _silenced(live: Live, subject: str) -> None:
    live._kept = None  # another prompt each time
    row = live.cell("subtract", 226, 68)
    neurons = ((2, 312), (2, 347), (1, 265))
    silence.ablated(live, row, jobs.Ablation(subject, "subtract", neurons, "mean"))


def _opened() -> float:
    """Return seconds from the explorer's command to the first heading in a browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    with tempfile.TemporaryDirectory() as profile:
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        code = "from stages.explorer.explore import main; main(['--no-browser', '--port', '0'])"
        command = [sys.executable, "-P", "-c", code]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout
            [address] = re.findall(r"http://\S+", running.stdout.readline())
            driver.get(address)
            while not driver.execute_script("return document.querySelector('h1')?.innerText"):
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            driver.quit()
            running.terminate()
    return seconds
