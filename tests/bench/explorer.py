"""The benchmark of the explorer on the default subject: how long until it is there, and until each view is."""

import os
import re
import subprocess
import sys
import tempfile
import time

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
    """Opening (bar 3 s), any view (bar 500 ms, with what follows behind it), a map (bar 100 ms), a silenced prompt (bar 300 ms)."""
    of = Explorer(Project())
    live = of.models.wait(of.project.subjects[0])
    for path, fields in QUESTIONS.items():
        question = Question(fields)
        first, whole = median(ROUNDS, lambda p=path, q=question: _view(of, p, q), lambda p=path, q=question: _view(of, p, q, True))
        print(f"explorer: the view {path}: {1000 * first:.0f} ms, whole {1000 * whole:.0f} ms (bar 500)")
    subject, numbers = of.project.subjects[0], iter(range(1000))
    [seconds] = median(20, lambda: of.project.map(subject, "add", 2, next(numbers) % 512))
    print(f"explorer: a neuron's map: {1000 * seconds:.1f} ms (bar 100)")
    [seconds] = median(ROUNDS, lambda: _silenced(live, subject))
    print(f"explorer: a silenced prompt, and {silence.DRAWS} random sets: {1000 * seconds:.0f} ms (bar 300)")
    print(f"explorer: opened, from the command to the first view in Chromium: {_opened():.1f} s (bar 3)")


def _view(of: Explorer, path: str, question: Question, later: bool = False) -> str:
    """What the server does for a view, as far as the bytes that it sends."""
    from plotly.io.json import to_json_plotly

    view = VIEWS[path]
    fields, content = answered(of, view, question)
    parts = [content(), *(tried(make, of, Question({one.name: one.value for one in fields})) for make in view.later.values() if later)]
    return "".join(map(to_json_plotly, parts))


def _silenced(live: Live, subject: str) -> None:
    live._kept = None  # another prompt each time
    row = live.cell("subtract", 226, 68)
    neurons = ((2, 312), (2, 347), (1, 265))
    silence.ablated(live, row, jobs.Ablation(subject, "subtract", neurons, "mean"))


def _opened() -> float:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    with tempfile.TemporaryDirectory() as profile:
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        command = [sys.executable, "-P", "-c", "from stages.explorer.explore import main; main(['--no-browser', '--port', '0'])"]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as running:
            [address] = re.findall(r"http://\S+", running.stdout.readline())  # type: ignore[union-attr]
            driver.get(address)
            while not driver.execute_script("return document.querySelector('h1')?.innerText"):
                time.sleep(0.01)
            seconds = time.perf_counter() - start
            driver.quit()
            running.terminate()
    return seconds
