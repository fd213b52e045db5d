"""Progress of a stage, on a terminal and in a log."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stages.lib.core import progress
from tests.lib.terminals import Terminal
from tests.micro import ROOT


class Clock:
    """A clock whose time a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(capsys: pytest.CaptureFixture) -> list[str]:
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()


def test_a_log_has_a_line_every_ten_seconds_and_one_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture
):
    with progress.Log(
        total=6144, desc="permutation_tests abacus", unit="neuron", clock=clock
    ) as log:
        for second in range(1, 65):
            clock.now = 100.0 + second
            log.update(96)
    assert lines(capsys) == [
        "permutation_tests abacus: 960 of 6,144 neurons, 10 s, about 54 s left",
        "permutation_tests abacus: 1,920 of 6,144 neurons, 20 s, about 44 s left",
        "permutation_tests abacus: 2,880 of 6,144 neurons, 30 s, about 34 s left",
        "permutation_tests abacus: 3,840 of 6,144 neurons, 40 s, about 24 s left",
        "permutation_tests abacus: 4,800 of 6,144 neurons, 50 s, about 14 s left",
        "permutation_tests abacus: 5,760 of 6,144 neurons, 60 s, about 4 s left",
        "permutation_tests abacus: 6,144 of 6,144 neurons, 64 s",
    ]


def test_short_work_leaves_nothing_in_a_log(clock: Clock, capsys: pytest.CaptureFixture):
    for _ in progress.Log(range(10), total=10, desc="short", unit="group", clock=clock):
        clock.now += 1
    assert lines(capsys) == []


def test_units_that_take_long_have_a_line_each(clock: Clock, capsys: pytest.CaptureFixture):
    seen = []
    for item in progress.Log(iter("abc"), total=None, desc="pairs", unit="pass", clock=clock):
        seen.append(item)
        clock.now += 100
    assert seen == ["a", "b", "c"]
    assert lines(capsys)[:2] == ["pairs: 1 pass, 2 min", "pairs: 2 passes, 3 min"]
    for _ in progress.Log("ab", total=2, desc="pairs", unit="pass", clock=clock):
        clock.now += 4000
    assert lines(capsys) == ["pairs: 1 of 2 passes, 67 min", "pairs: 2 of 2 passes, 2 h 13 min"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_an_earlier_run_did_does_not_count_as_speed(
    clock: Clock, capsys: pytest.CaptureFixture, at_once: bool
):
    """A stage may give earlier work as `initial`, or report it as soon as it starts."""
    with progress.Log(
        total=1000, desc="runs", unit="run", initial=0 if at_once else 900, clock=clock
    ) as log:
        if at_once:
            log.update(900)
        clock.now += 20
        log.update(20)
        log.set_postfix_str("loss 0.5", refresh=False)
        clock.now += 20
        log.update(20)
    assert lines(capsys) == [
        "runs: 920 of 1,000 runs, 20 s" + (", about 80 s left" if at_once else ""),
        "runs: 940 of 1,000 runs, 40 s, about 60 s left; loss 0.5",
        "runs: 940 of 1,000 runs, 40 s; loss 0.5",  # ended early: that is how far it came
    ]


def test_what_the_first_unit_takes_to_warm_up_is_not_expected_of_the_others(
    clock: Clock, capsys: pytest.CaptureFixture
):
    with progress.Log(total=512, desc="permutation_tests", unit="neuron", clock=clock) as log:
        log.update(0)  # an earlier run did nothing
        for seconds, done in ((28, 1), (10, 200)):
            clock.now += seconds
            log.update(done)
    assert lines(capsys)[:2] == [
        "permutation_tests: 1 of 512 neurons, 28 s",
        "permutation_tests: 201 of 512 neurons, 38 s, about 16 s left",
    ]


def schedule(workers: int, total: int, step: int) -> list[tuple[float, int, int]]:
    """Return (time, amount, worker) of reports: each worker loads for 5 s, then does its steps.

    Workers differ in speed by up to a tenth, so that they report at nearly the same moments.
    """
    reports = []
    for worker in range(workers):
        seconds = 16.0 * (1 + 0.1 * worker / workers)
        reports.append((5.0 + 0.01 * worker, 0, worker))
        steps = range(1, total // step // workers + 1)
        reports += [(5.0 + seconds * number, step, worker) for number in steps]
    return sorted(reports)


def left_in_log(bar: progress.Log, now: float) -> float:
    """Return the seconds left that a log would write at this moment."""
    left = progress.seconds_left(bar.total - bar.done, bar.paces.values(), now)
    assert left
    return left


def left_on_terminal(bar: progress.TerminalBar, now: float) -> float:
    """Return the seconds left that a terminal shows at this moment."""
    bar.clock.now = now
    hours, minutes, seconds = re.search(r"<(?:(\d+):)?(\d+):(\d+),", str(bar)).groups("0")
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds)


@pytest.mark.parametrize(
    ("kind", "left_of"),
    [(progress.Log, left_in_log), (progress.TerminalBar, left_on_terminal)],
)
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("step", [400, 2000])  # a hundredth or a twentieth of the work
def test_after_a_tenth_of_the_work_the_rest_is_estimated(
    clock: Clock,
    kind: type[progress.Bar],
    left_of: Callable[..., float],
    workers: int,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """The estimate is within a factor of 1.5, in a log as on a terminal."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    total, done = 40_000, 0
    reports = schedule(workers, total, step)
    bar = kind(total=total, desc="dump", unit="prompt", clock=clock)
    begin, end = clock.now, reports[-1][0]
    for passed, amount, worker in reports:
        clock.now = begin + passed
        bar.update(amount, worker)
        done += amount
        for later in (0, 8) if total / 10 <= done < total / 2 else ():  # or within a step
            left = left_of(bar, begin + passed + later)
            assert 1 / 1.5 < left / (end - passed - later) < 1.5


def test_a_terminal_shows_no_time_left_before_any_worker_has_a_speed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Loading a model, and what an earlier run did, do not count as speed."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = progress.TerminalBar(total=1000, desc="runs", unit="run", clock=clock)
    bar.update(900)
    clock.now += 20
    assert re.search(r"900/1000 \[\d\d:\d\d<\?, ", str(bar))
    bar.update(20)
    assert left_on_terminal(bar, clock.now) == 80
    bar.update(80)
    assert "1000/1000" in str(bar)
    assert "<00:00, " in str(bar)


def test_a_worker_that_stops_makes_the_estimate_longer(clock: Clock):
    log: progress.Log = progress.Log(total=100, desc="dump", unit="prompt", clock=clock)
    log.update(0, "worker")
    clock.now += 10
    log.update(10, "worker")
    paces = log.paces.values()
    estimates = [progress.seconds_left(90, paces, clock.now + passed) for passed in (0, 5, 10, 100)]
    assert estimates == [90, 85, 80, 440]


def test_no_unit_is_lost_among_threads(clock: Clock, capsys: pytest.CaptureFixture):
    with (
        progress.Log(total=20000, desc="many", unit="neuron", clock=clock) as log,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda _: log.update(), range(20000)))
        clock.now += 11
    assert lines(capsys) == ["many: 20,000 of 20,000 neurons, 11 s"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (5339, "89 min"),
        (5399, "1 h 30 min"),
        (12000, "3 h 20 min"),
    ],
)
def test_a_duration_in_words(seconds: float, words: str):
    assert progress.spoken(seconds) == words


LOOP = """
from stages.lib.core import progress
for _ in progress.bar([1, 2, 3], desc="abacus", unit="group"):
    pass
with progress.bar(total=5, desc="more", unit="run", unit_scale=True, initial=2) as bar:
    bar.set_postfix_str("loss 0.5")
    bar.update(3)
"""


def test_a_terminal_shows_a_bar_with_what_is_left():
    status, text = Terminal(ROOT, sys.executable, "-c", LOOP).finish()
    assert status == 0
    assert "abacus: 100%" in text
    assert "3/3 [00:00<00:00" in text
    assert "5.00/5.00 [00:00<00:00" in text
    assert "loss 0.5" in text


def test_a_log_of_short_work_stays_empty():
    done = subprocess.run(
        [sys.executable, "-c", LOOP], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
