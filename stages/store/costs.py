"""What the chapters behind a dump will cost of a model that nobody has loaded yet: runs, maps, and the time that they take here.

Rough on purpose: products of matrices alone, of all cores. Late layers, known only once there are probes, are taken for the second half.
"""

import time
from collections.abc import Iterator
from functools import cache

import numpy as np

from stages.lib.core import machine
from stages.lib.core.settings import read
from stages.lib.model.architecture import Architecture
from stages.lib.subject import Sizes, SubjectSettings

TRIED = 0.2  # seconds in which this machine shows how fast it multiplies
DAY = 86_400
NULLS = 0.09  # seconds of a core for a map of 90,000 cells: its score against as many relabelled ones as it takes (docs/cluster.md)
ROLES, OPERANDS = 4, 3  # positions of a prompt that are patched; of these, those at which the first layer's neurons are
PAIRS, NEURONS = 10, 10  # pairs of a split and a seed that are proposed where all are too many; the fewest neurons of a layer
KINDS = {
    "arithmetic": 72,
    "number_words": 60,
    "three_operands": 87,
    "retrieval": 8,
    "factual": 6,
}  # of pairs: conditions, templates, operators
PLACES = 11  # tokens of such a prompt, on average
# What a run goes through: the layers behind its patch, of all, times the tokens from it on. Here on average; of neurons see `swept`.
COMPONENTS, MEDIATION = (ROLES + 1) / 2 / 2, (PLACES + 1) / 2 / 2


class Costs:
    """Of one model, with an entry's settings. size: prompts of an operator's square."""

    def __init__(self, a: Architecture, settings: SubjectSettings, size: int):
        self.a, self.settings, self.size = a, settings, size
        self.params = read()
        self.speed = _speed("float64" if settings.dtype == "float64" else "float32")
        self.layer = 3 * a.neurons * a.width + 4 * a.heads * a.head_width * a.width  # multiplications at one position
        self.head = a.vocabulary * a.width

    def dump(self) -> float:
        """Seconds: two positions of every prompt, the others being shared by a row of prompts."""
        return len(self.settings.operators) * self.size * (2 * len(self.a.layers) * self.layer + self.head) / self.speed

    def pairs(self, sizes: Sizes) -> int:
        """Pairs of prompts on which components, and neurons, are patched."""
        usual = self.params["pairs"]
        each = sizes.pairs_per_split or usual["pairs_per_split"]
        return each * len(usual["seeds"]) * len(self.settings.operators)

    def components(self, sizes: Sizes) -> int:
        """Runs of the chapter circuit with one MLP or head patched."""
        return len(self.a.layers) * (self.a.heads + 1) * ROLES * self.pairs(sizes)

    def neurons(self, sizes: Sizes) -> int:
        """Runs of the chapter neurons with one neuron patched."""
        sites = self._late() + OPERANDS
        few = sizes.patched_neurons or self.params["neuron_interventions"]["patched_neurons"]
        return sites * min(few or self.a.neurons, self.a.neurons) * self.pairs(sizes)

    def swept(self) -> float:
        """What such a run goes through: of late layers a quarter of the layers at one token, of the first all at two to four."""
        late = self._late()
        return (late / 4 + OPERANDS * (2 + ROLES) / 2) / (late + OPERANDS)

    def _late(self) -> int:
        return len(self.a.layers) - len(self.a.layers) // 2

    def mediation(self, sizes: Sizes) -> int:
        """Runs of the chapter mediation with one MLP or attention block patched at one token."""
        each = self._each_template(sizes)
        return 2 * len(self.a.layers) * PLACES * sum(KINDS.get(task, 1) * number for task, number in each.items())

    def _each_template(self, sizes: Sizes) -> dict[str, int]:
        return self.params["mediation"]["pairs_per_template"] | (sizes.pairs_per_template or {})

    def seconds(self, runs: int, share: float) -> float:
        """Of runs that each go through such a share of the layers, times tokens."""
        return runs * (share * len(self.a.layers) * self.layer + self.head) / self.speed

    def maps(self) -> int:
        """Neurons' maps, each held against the catalogue of heuristics."""
        return self.a.neurons * len(self.settings.kept_layers(len(self.a.layers))) * len(self.settings.operators)

    def proposed(self) -> Sizes:
        """Return fewer pairs and neurons than usual where a chapter takes more than a day here."""
        few = Sizes()
        if self.seconds(self.neurons(few), self.swept()) > DAY:
            few = Sizes(pairs_per_split=PAIRS, patched_neurons=1)
            each = self.seconds(self.neurons(few), self.swept())
            few = few.model_copy(update={"patched_neurons": min(self.a.neurons, max(NEURONS, int(DAY / each)))})
        if (long := self.seconds(self.mediation(few), MEDIATION)) > DAY:
            fewer = {task: min(number, max(1, int(number * DAY / long))) for task, number in self._each_template(few).items()}
            few = few.model_copy(update={"pairs_per_template": fewer})
        return few

    def lines(self) -> Iterator[str]:
        """What `bag check` says of the chapters."""
        fewer = self.proposed()
        yield f"dump          about {spoken(self.dump())} here for {len(self.settings.operators) * self.size:,} prompts"
        yield from self._runs(Sizes())
        long = NULLS * self.maps() * self.size / 90_000 / machine.workers()
        yield f"heuristics    {self.maps():,} maps, about {spoken(long)} here; of fewer `layers` it takes less"
        if fewer != Sizes():
            values = [f"{key}: {value}" for key, value in fewer if value is not None]
            yield f"proposed      {', '.join(values)}: so `bag add` writes it, and then"
            yield from self._runs(fewer)

    def _runs(self, sizes: Sizes) -> Iterator[str]:
        for chapter, runs, share in (
            ("circuit", self.components(sizes), COMPONENTS),
            ("neurons", self.neurons(sizes), self.swept()),
            ("mediation", self.mediation(sizes), MEDIATION),
        ):
            yield f"{chapter:14}{runs:,} runs, about {spoken(self.seconds(runs, share))} here"


def spoken(seconds: float) -> str:
    """A time, as it is said."""
    for size, name in ((DAY, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{max(1, seconds):.0f} s"


@cache
def _speed(dtype: str) -> float:
    """Multiplications a second, of all cores."""
    one = np.ones((1024, 1024), dtype)
    start, products = time.perf_counter(), 0
    while time.perf_counter() < start + TRIED:
        one @ one
        products += 1
    return products * len(one) ** 3 / (time.perf_counter() - start)
