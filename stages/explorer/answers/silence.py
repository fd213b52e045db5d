"""Neurons silenced: which, what the subject then says to a prompt, beside as many random ones, and to every cell of the grid."""

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stages.explorer.project import ExplorerError, Project

if TYPE_CHECKING:
    from stages.explorer.live import Live

Neurons = list[tuple[int, int]]  # layer and neuron
YIELD = 0.005  # seconds in which a page that waits for the model gets it: a lock let go and taken at once, nobody else gets
DRAWS = 5  # sets of random neurons
REPLACEMENTS = {"mean": "mean", "zero": "zero", "counterfactual": "another prompt's value"}
HEURISTICS = """
    select heuristic, count(*) as neurons from heuristic_neurons
    where subject = $subject and operator = $operator and membership = $membership and late
    group by heuristic
    order by neurons desc, heuristic
"""
STANDING = """
    select distinct layer, neuron from heuristic_neurons
    where subject = $subject and operator = $operator and membership = $membership and late and list_contains($heuristics, heuristic)
    order by layer, neuron
"""
ROWS = """
    select 0 as intervention, '{operator}' as operator, null as split, 'neuron' as component, layer, list(neuron order by neuron) as units,
        'last' as position, null as key_position, '{replacement}' as replacement
    from (values {neurons}) as chosen(layer, neuron)
    group by layer
    order by layer
"""
BROKEN, MENDED, SAME = 1, -1, 0


@dataclass(frozen=True)
class Silencing:
    """What is silenced, and how. other: the prompt whose values are put in, where that is asked for; made_of: see Project.made_of."""

    subject: str
    operator: str
    neurons: tuple[tuple[int, int], ...]
    replacement: str
    other: tuple[str, int, int] | None = None
    made_of: int = 0

    def rows(self) -> str:
        """The SQL of this intervention's rows, which an experiment of one's own starts from."""
        listed = ", ".join(f"({layer}, {neuron})" for layer, neuron in self.neurons)
        return ROWS.format(operator=self.operator, replacement=self.replacement, neurons=listed)


def heuristics(project: Project, subject: str, operator: str, membership: str) -> pl.DataFrame:
    """Those that late neurons stand for: heuristic, neurons."""
    project.need(subject, "heuristic_neurons")
    return project.ask(HEURISTICS, subject=subject, operator=operator, membership=membership)


def standing(project: Project, subject: str, operator: str, membership: str, named: list[str]) -> Neurons:
    """The late neurons that stand for one of these heuristics. Raises ExplorerError on a heuristic that none stands for."""
    known = heuristics(project, subject, operator, membership)["heuristic"].to_list()
    if unknown := [name for name in named if name not in known]:
        raise ExplorerError(f"no late neuron of {subject} stands for {unknown[0]!r} on {operator}; take one of the list.")
    return project.ask(STANDING, subject=subject, operator=operator, membership=membership, heuristics=named).rows()


def silenced(live: "Live", prompt: pl.DataFrame, of: Silencing) -> list[np.ndarray]:
    """Logits (vocabulary,) of a prompt: left alone, with the neurons silenced, then with as many random ones, DRAWS times."""
    other = live.cell(*of.other) if of.other else None
    sets = [list(of.neurons), *(live.random(of.neurons, seed) for seed in range(DRAWS))]
    spoken = live.speak(of.operator, prompt["op1"].item(), prompt["op2"].item())
    return [spoken.logits, *live.silenced(prompt, [one for one in sets if one], of.replacement, other)]


def summary(logits: list[np.ndarray], answer: int, numbers: pl.DataFrame) -> pl.DataFrame:
    """What is said each time: silenced, says (null for what is no number), right, probability of the answer, logit of the answer above
    the mean over the vocabulary. answer: its token; numbers: number, token."""
    number_of = dict(numbers.select("token", "number").iter_rows())
    names = ["nothing", "the chosen neurons", *(f"as many random ones, draw {draw}" for draw in range(1, DRAWS + 1))]
    rows = []
    for name, of in zip(names, logits, strict=False):
        said = int(of.argmax())
        probability = float(np.exp(of[answer] - of.max()) / np.exp(of - of.max()).sum())
        rows.append((name, number_of.get(said), said == answer, probability, float(of[answer] - of.mean())))
    schema = {"silenced": pl.String, "says": pl.Int32, "right": pl.Boolean, "probability": pl.Float64, "logit": pl.Float64}
    return pl.DataFrame(rows, schema, orient="row")


@dataclass
class GridJob:
    """The same over every cell of an operator, in a thread of its own. chosen, drawn: (op1, op2), BROKEN, MENDED, SAME, NaN for no cell."""

    of: Silencing
    done: bool = False
    cells: tuple[int, int] = (0, 0)  # so far, of all
    error: str | None = None
    chosen: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    drawn: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    stopped: bool = False
    thread: threading.Thread | None = None
    tabs: set[str] = field(default_factory=set)  # of browsers, that look at it

    def share(self) -> int:
        """How much is done, in twentieths: what a page shows of it anew."""
        return self.cells[0] * 20 // max(self.cells[1], 1)

    def start(self, live: "Live", lock: threading.RLock, side: int) -> None:
        self.chosen, self.drawn = np.full((side, side), np.nan, np.float32), np.full((side, side), np.nan, np.float32)
        self.thread = threading.Thread(target=self._run, args=(live, lock), daemon=True)
        self.thread.start()

    def _run(self, live: "Live", lock: threading.RLock) -> None:
        try:
            with lock:
                other = live.cell(*self.of.other) if self.of.other else None
                parts = live.grid(self.of.operator, self.of.neurons, live.random(self.of.neurons, 0), self.of.replacement, other)
            while not self.stopped:
                with lock:  # between parts others may work with the model
                    part = next(parts, None)
                if part is None:
                    break
                self._add(*part)
                time.sleep(YIELD)
        except Exception as error:  # whatever it is, the page says it
            self.error = str(error)
        self.done = True

    def _add(self, cells: tuple[int, int], op1: np.ndarray, op2: np.ndarray, said: np.ndarray, answers: np.ndarray) -> None:
        right = said == answers
        for square, now in ((self.chosen, right[1]), (self.drawn, right[2])):
            square[op1, op2] = right[0].astype(np.float32) - now
        self.cells = cells
