"""Estimate what every stage costs for a model that has not been run: time, memory and disk.

Each row derives the number of prompts, runs or maps of its stage from the settings and the
architecture, and multiplies it by the time of one of them on this machine. The module `rates` has
the time of a forward pass, `kernels` those of the functions that describe a neuron's map. What is
left are steps of Python, SQL and DVC: their seconds are those of the machine of 2026-11-28
(docs/notes/performance.md), times how much longer this machine takes for a loop in Python. Stages
and their kinds are those of dvc.yaml. Late layers are known only after the probes; a share is
assumed (LATE).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stages.lib.ask import LOGITS, VALUES
from stages.lib.core import environment
from stages.lib.core.settings import read
from stages.lib.core.vocabulary import ARITHMETIC, TASKS
from stages.lib.executor.blocks import CACHED, FIXED
from stages.lib.model.architecture import Architecture
from stages.lib.model.prefixes import FEWEST
from stages.lib.settings import Passes, Runs
from stages.lib.subject import Sizes, SubjectSettings
from stages.store.answers import answers_on_grid
from stages.store.declared_stages import Kind, declared
from stages.store.kernels import KernelTimes
from stages.store.rates import Rates
from stages.store.settings import Dump

ROLES, OPERANDS = 4, 3  # patched positions; those at which neurons of layer 0 are patched
KINDS = {
    "arithmetic": 72,
    "number_words": 60,
    "three_operands": 87,
    "retrieval": 8,
    "factual": 6,
}  # combinations of condition, template and operator
QUESTIONS = {
    "arithmetic": (4, 32),
    "number_words": (30,),
    "three_operands": (29,),
    "retrieval": (8,),
    "factual": (6,),
}  # combinations with single neurons and coordinates patched, by question
PLACES = 11  # tokens of a prompt of these tasks, on average
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

# Seconds of a core of the machine of 2026-11-28, besides forward passes and kernels.
TOKENIZED = 3e-5  # to tokenize a prompt and find its operands
STARTED = 1.2  # to start a stage, as a fork of a process with all libraries, and to end it in DVC
PLANNED_RUNS = 1.0  # to list the runs of a stage and put their parts together
LISTED_PAIRS = 1.0  # to list pairs, or what their prompts are associated with
GRID = 0.9  # to find which cells of an operator each heuristic covers
DICTIONARY = 1.2  # to make the terms of an operator's theories
RUN = 5e-6  # the patch, measures and row of a run
SINGLE = 8e-5  # a layer of a run on a pair of its own, which shares no pass
READ = 2e-11  # a byte of the weights of layers that such a run reads
GIVEN = 1.2e-7  # a byte of external values, which runs of theories read
SCORED_MAP = 7.5e-4  # to write the rows of a map's scores
SCORED_CELL = 1.5e-8  # to read a cell of a map
OVERLAPS = 1e-5  # a cell of an operator
PART = 2.6e-3  # to list the Fourier components of some neurons
HELIX = 2.2e-3  # a layer and operator, for each coordinate of the residual stream
ESTIMATED = 4e-7  # the row of an attribution
AVERAGED = 3.5e-7  # an attribution in the means of queries
SUMMED = 1.1e-8  # a late neuron and cell in failures
JOINED = 4.5e-10  # a match and cell in failures
DIGITS = 6e-9  # a late neuron and cell in digit_means
ROW = 8e-6  # a row of runs in queries
MATCHED = 2.8e-5  # a match in queries
FIGURE = 4.0  # figures of a chapter, or a page
DRAWN = 5e-6  # a match in figures
# Relative to forward passes.
STORED = 1.1  # a dump: sums of all activations, HDF5
# Runs, whose passes are larger, of a model whose weights stay in the cache. A larger model's plain
# passes are as fast as products can be.
PASSED = 0.75
HELD = 1 << 30  # bytes of a pass that keeps residual streams, at most
MOVING = 0.4  # share of mediation's runs that change anything before the last layer's end
# Relative to the kernels of a map.
DRAWS = 75  # relabellings of a neuron in permutation tests, the mean over all
SEVERAL = 1.35  # scores and relabellings if answers have several tokens: heuristics of each token
SEARCHES = 5.0  # of predicates: the map, its decoy, and the catalogue; structure takes longer
LABELLED = 0.8  # fits of labels, relative to all maps
RESCORED = 0.95  # scores of labels about results, of all scores of the shifted neurons
FAULTY = 1.5  # scores with the published sizes, of all scores
FITTED = 4.5  # theories of a map and of its control
# Bytes.
LIBRARIES, ARRAYS = 480 << 20, 194 << 20  # a process with torch, and one without
SMALL = 300 << 20  # a process that reads tables with DuckDB and Polars
POLARS, LISTED_RUN = 130 << 20, 1800  # a process that lists runs with Polars alone; a run
TOKEN = 1000  # a token of the vocabulary in a tokenizer
TORCH = 360 << 20  # a process with torch that loads no model
# A cell of the corpus: whether it satisfies each heuristic of the catalogue, those that some neuron
# has, and those that are labels.
SATISFIED, SATISFIED_BY_SOME, SATISFIED_BY_LABELS = 3300, 2300, 1500
COVERED = 4200  # a cell of the corpus, for scores with the published sizes
LISTED_CELL = 1200  # a cell of the corpus in lists of operands
DRAWN_CELL = 1200  # a cell of the grid in figures
COMPONENT = 240  # a Fourier component of a map, in the table and its sorted copy
# A match: in queries of neurons or heuristics that match, and in a figure.
LISTED_MATCH, RANKED_MATCH, DRAWN_MATCH = 36, 68, 150
EXPLAINED = 100  # a map, as a few have theories of labels
RUN_ROW, PREDICTION_ROW, ESTIMATE_ROW = 20, 6, 4  # a row on disk
GROUPED = 25  # an attribution in the means of queries
MATCH = 640  # a row of matches in the query that makes them, one operator at a time
LARGEST = 1.6  # matches of the operator that has most, relative to the mean
PLANNED, LISTED = 500, 4000  # a prompt in the plan of a dump, and in lists of tokens
TERMS = 80_000  # a cell in the terms of three theories
EXTRA = "store/answer_accuracy"  # only the summary of the default model needs it
# The share of layers taken to be late, rounded down, and the fewest. In fact 8 of 24 are late in
# Qwen2.5-Coder-0.5B, 16 of 32 in Llama-3-8B (Nikankin et al. 2025), 2 of 3 in the default model.
# Costs grow with the square of their number: 1.3 times too large for Qwen, 1.5 too small for Llama.
LATE, FEWEST_LATE = 0.41, 2
# These depend on the results. The values are means over the models of this project.
SCORED = 0.5  # share of neurons that match a heuristic and are ablated one by one: 0.33 to 0.66
KNOCKED = 130  # heuristics per operator whose neurons are ablated together
MATCHES, MATCHES_OF_DIGITS = 3.5, 21  # of a map; with answers of several tokens
LENGTHS = 2  # of an operator's prompts, about: only prompts of one length share a pass
CUTS = 6  # circuits per operator when attention is cut, at most
ARMS = 5 * 2 * 2  # of ablations by prompt: arms, criteria, replacements


@dataclass(frozen=True)
class CostRow:
    """The costs of one stage, or of several cheap ones together.

    stages: chapter/stage; count, counted: how many of what the stage computes.
    cpu: seconds of one core; memory: bytes of one worker at its peak; disk: bytes of the outputs.
    workers: processes that share the work, except for `alone` of these seconds; varies: whether the
    count depends on results; guessed: whether the stage is not the project's own, so that its work
    is only guessed; extra: whether `make model` leaves it out, since the model's page does not need
    it.
    """

    stages: tuple[str, ...]
    count: float
    counted: str
    cpu: float
    memory: float
    disk: float = 0
    workers: int = 1
    alone: float = 0
    varies: bool = False
    guessed: bool = False
    extra: bool = False

    @property
    def name(self) -> str:
        return self.stages[0] if len(self.stages) == 1 else self.counted

    @property
    def wall(self) -> float:
        """Seconds on this machine."""
        return self.alone + (self.cpu - self.alone) / self.workers


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of a grid's longest prompt, of its part from op2 on, and of the longest answer."""

    length: int = 5
    own: int = 2
    answer: int = 1

    @property
    def unshared(self) -> int:
        """Tokens after those that all prompts begin with, if these are computed only once."""
        shared = self.length - self.own - 2
        return self.length - shared if shared >= FEWEST else self.length


class Costs:
    """The costs of one model with its entry's settings.

    a: the architecture; side: number of operands of the grid; weights: bytes of the weights in
    memory; rates: of this machine; prompts: lengths in tokens.
    """

    def __init__(
        self,
        a: Architecture,
        settings: SubjectSettings,
        side: int,
        weights: float,
        rates: Rates,
        prompts: PromptLengths | None = None,
    ):
        self.a, self.settings, self.rates = a, settings, rates
        self.prompts, self.params = prompts or PromptLengths(), read()
        self._declared: dict[str, dict[str, Kind]] = {}
        self.depth, self.operators = len(a.layers), len(settings.operators)
        self.side, self.cells = side, side**2
        self.grid = self.operators * self.cells
        self.corpus = (self.params["cells"]["largest_operand"] + 1) ** 2  # cells of an operator
        self.kept = len(settings.kept_layers(self.depth))
        self.late = min(self.depth, max(FEWEST_LATE, int(LATE * self.depth)))
        self.passes = settings.passes or Passes(**self.params["passes"])
        self.runs = settings.runs or Runs(**self.params["runs"])
        self.bytes = BYTES[settings.dtype]
        self.weights, self.loaded = weights, LIBRARIES + weights

    def changed(self, **entry: Any) -> "Costs":
        """Return the costs with other keys of the model's entry; largest_operand sets the grid."""
        settings = self.settings.model_copy(update=entry)
        side = len(settings.operands(self.side - 1))
        return Costs(self.a, settings, side, self.weights, self.rates, self.prompts)

    @property
    def kernels(self) -> KernelTimes:
        """The times of a neuron's map, which only a model in all chapters needs."""
        assert self.rates.kernels is not None
        return self.rates.kernels

    @property
    def maps(self) -> int:
        """Number of neurons' maps: one for each neuron of a kept layer and operator."""
        return self.a.neurons * self.kept * self.operators

    @cached_property
    def answered_by_operator(self) -> list[int]:
        """Number of cells with an answer, of each operator."""
        largest, operands = self.params["cells"]["largest_answer"], range(self.side)
        grids = [answers_on_grid(each, operands, largest) for each in self.settings.operators]
        return [int((grid >= 0).sum()) for grid in grids]

    @property
    def answered(self) -> int:
        """Number of cells with an answer, of all operators together."""
        return sum(self.answered_by_operator)

    @property
    def matches(self) -> float:
        """Number of matches of heuristics and neurons, of all maps together."""
        several = self.settings.answer_token is not None
        return self.maps * (MATCHES_OF_DIGITS if several else MATCHES)

    @property
    def answered_maps(self) -> float:
        """Number of maps, each counted as its cells with an answer, relative to the measured map.

        This is for kernels that look at these cells alone.
        """
        return self.a.neurons * self.kept * self.answered / self.kernels.cells

    @property
    def whole_maps(self) -> float:
        """Number of maps, each counted as all cells of its grid, relative to the measured map.

        This is for kernels that look at all cells, with an answer or without.
        """
        return self.maps * self.cells / self.kernels.grid

    @cached_property
    def late_share(self) -> float:
        """Late layers relative to the kept ones."""
        return min(1.0, self.late / self.kept)

    def rows(self, sizes: Sizes, section: str = "subjects") -> list[CostRow]:
        """Return the costs of every stage for a model in this section of params.yaml."""
        rows = list(self._store())
        if section == "subjects":
            rows = [replace(row, extra=row.name == EXTRA) for row in rows]
            chapters = (
                self._circuit, self._neurons, self._heuristics, self._bag, self._theories,
                self._mediation,
            )  # fmt: skip
            for chapter in chapters:
                rows += chapter(sizes)
        named = {stage for row in rows for stage in row.stages}
        kinds = self._stages(section)
        rows += self._others(sizes, {stage: kinds[stage] for stage in kinds if stage not in named})
        return rows

    def _stages(self, section: str) -> dict[str, Kind]:
        if section not in self._declared:
            self._declared[section] = declared(section)
        return self._declared[section]

    # Numbers of prompts, pairs and runs, as in the chapters' tables.

    def pairs(self, sizes: Sizes) -> int:
        """Return the number of pairs of prompts of one split, over seeds and operators."""
        usual = self.params["pairs"]
        each = sizes.pairs_per_split or usual["pairs_per_split"]
        return each * len(usual["seeds"]) * self.operators

    def components(self, sizes: Sizes) -> int:
        """Return the number of runs with one MLP or head patched."""
        return (self.depth * (self.a.heads + 1) * ROLES + 1) * self.pairs(sizes)

    def head_circuits(self, sizes: Sizes) -> int:
        """Return the number of runs with only the first or random heads kept."""
        heads = self.depth * self.a.heads
        settings = self.params["head_circuits"]
        counts = {min(count, heads) for count in settings["head_counts"]} | {heads}
        own, usual = sizes.random_head_circuits, settings["random_head_circuits"]
        random = usual if own is None else own
        drawn = len(counts) + (random - 1) * (len(counts) - 2) if random else 0
        return (3 * len(counts) + drawn + 3) * self.pairs(sizes)

    def neurons(self, sizes: Sizes) -> int:
        """Return the number of runs with one neuron patched."""
        patched = self.patched(sizes) + self.sampled(sizes)
        neurons = min(patched, self.a.neurons)
        return ((self.late + OPERANDS) * neurons + 1) * self.pairs(sizes)

    def patched(self, sizes: Sizes) -> int:
        """Return how many neurons of a layer are patched for each operator, without random ones."""
        few = sizes.patched_neurons or self.params["neuron_interventions"]["patched_neurons"]
        return min(few or self.a.neurons, self.a.neurons)

    def sampled(self, sizes: Sizes) -> int:
        """Return how many random neurons of a layer are patched in addition."""
        own, usual = sizes.sampled_neurons, self.params["neuron_interventions"]["sampled_neurons"]
        return usual if own is None else own

    def attributions(self, sizes: Sizes) -> int:
        """Return the estimates of neurons' effects, one for each neuron, position and pair."""
        return (self.late + OPERANDS) * self.a.neurons * self.pairs(sizes)

    def neuron_circuits(self, sizes: Sizes) -> int:
        """Return the number of runs that keep only the first k neurons of a layer.

        There are four rankings and random orders. Three rankings end with the patched neurons.
        """
        settings = self.params["neuron_circuits"]
        ks = [k for k in settings["neurons_per_layer"] if k < self.a.neurons]
        patched = sum(k <= self.patched(sizes) for k in ks)
        circuits = 3 * patched + (1 + settings["random_circuits"]) * len(ks)
        return (2 * circuits + 3) * self.pairs(sizes)

    def neuron_knockouts(self, sizes: Sizes) -> int:
        """Return the number of runs with one neuron ablated, to zero and to its mean."""
        neurons = SCORED * self.a.neurons
        if self._patches_all(sizes):
            neurons *= self.kept
        else:
            neurons = min(neurons, self.patched(sizes) + self.sampled(sizes))
            neurons *= min(self.late, self.kept)
        return int((2 * neurons + 1) * self.pairs(sizes))

    def _patches_all(self, sizes: Sizes) -> bool:
        """Return whether all neurons are patched, not only some of each late layer."""
        return self.patched(sizes) == self.a.neurons

    def knockouts(self, sizes: Sizes) -> int:
        """Return the number of runs with the neurons of a heuristic or control ablated."""
        draws = self.params["knockouts"]["control_draws"]
        return (2 * (1 + draws) * KNOCKED + 1) * self.pairs(sizes)

    def bags(self, sizes: Sizes) -> int:
        """Return the number of runs that keep some late neurons alone.

        For each of three criteria: the heuristic and the matched neurons, random ones of each draw,
        and all but these. In addition: everything and nothing. All others at 0 or at their means.
        """
        kept = 3 * 2 * (2 + self.params["knockouts"]["control_draws"]) + 2
        return 2 * kept * self.pairs(sizes)

    def shifted(self, sizes: Sizes) -> int:
        """Return how many neurons are shifted, each counted once for every operator."""
        neurons, layers = self.patched(sizes) + self.sampled(sizes), min(self.late, self.kept)
        if self._patches_all(sizes):
            neurons, layers = self.a.neurons, self.kept
        return min(neurons, self.a.neurons) * layers * self.operators

    def shifts(self, sizes: Sizes) -> int:
        """Return the number of runs with one neuron shifted up or down."""
        return 2 * self.params["causal_votes"]["vote_prompts"] * self.shifted(sizes)

    def steering(self, sizes: Sizes) -> int:
        """Return the number of runs with late neurons at their means for a digit or a carry."""
        arms = 4 * len(self.params["steering"]["steered_neurons"]) + 1
        carrying = len({"add", "subtract"} & {*self.settings.operators}) / self.operators
        draws = self._steered_digits() + 2 * carrying  # the prompt's own carry, and the other one
        return round(arms * draws * self.pairs(sizes))

    def _steered_digits(self) -> int:
        """Return how many digits a prompt is steered to, over all places."""
        places = 2 if self.settings.answer_token is None else 1
        return places * (1 + self.params["steering"]["steering_draws"])

    def prompt_knockouts(self, sizes: Sizes) -> int:
        """Return the number of runs with neurons ablated that are selected for each prompt."""
        counts = len(self.params["prompt_knockouts"]["neurons_per_layer"])
        return (ARMS * counts + 1) * self.pairs(sizes)

    def helices(self, sizes: Sizes) -> int:
        """Return the number of runs with a residual stream replaced by a theory's prediction."""
        sites = self._fitted_twice * 2 * self.depth + 2 * (self.depth - 1)  # operands, the result
        return (9 * sites + 1) * self.pairs(sizes)

    @property
    def _fitted_twice(self) -> int:
        """Return how many fits an operand has: to all numbers, and to small ones if others are."""
        return 1 + (self.side > self.params["helix"]["study_numbers"])

    def theories(self, sizes: Sizes) -> int:
        """Return the number of runs with late neurons replaced by the predictions of theories."""
        settings = self.params["theory_fits"]
        budgets = {*settings["budgets"]}
        controls = budgets & {*settings["control_budgets"], max(budgets)}
        searched, named = 3 * (len(budgets) + len(controls)), 2 * 2
        return (searched + named + 3) * self.pairs(sizes)

    def mediation_pairs(self, sizes: Sizes) -> int:
        """Return the most pairs of all tasks together."""
        each = self.per_template(sizes)
        return sum(KINDS.get(task, 1) * count for task, count in each.items())

    def per_template(self, sizes: Sizes) -> dict[str, int]:
        return self.params["mediation"]["pairs_per_template"] | (sizes.pairs_per_template or {})

    def mediation(self, sizes: Sizes) -> int:
        """Return the number of runs with one MLP, attention block or head patched at a token."""
        single = self._single(sizes.single_heads, "mediation_interventions", "single_heads")
        components = 2 + self.a.heads * single
        pairs, examples = self.mediation_pairs(sizes), self.settings.template.count("\n")
        each = self.per_template(sizes)
        sums = sum(KINDS[task] * each[task] for task in ARITHMETIC)  # they follow solved examples
        return components * self.depth * PLACES * (pairs + examples * sums) + pairs

    def units(self, sizes: Sizes) -> int:
        """Return the number of runs with a late neuron, or output coordinate of an MLP, patched."""
        most, each = self.params["unit_mediation"]["mediated_pairs"], self.per_template(sizes)
        pairs = 0
        for task, count in each.items():
            pairs += sum(min(most, kinds * count) for kinds in QUESTIONS.get(task, (1,)))
        patched, units = self.patched(sizes), self.a.neurons + self.a.width
        if patched < self.a.neurons:
            few = patched + self.sampled(sizes)
            units = min(few, self.a.neurons) + min(few, self.a.width)
        single = self._single(sizes.single_units, "unit_mediation", "single_units")
        return (self.late * units * single + 1) * pairs

    def _single(self, own: bool | None, section: str, key: str) -> bool:
        return self.params[section][key] if own is None else own

    # Seconds and bytes of these numbers.

    def steps(self, seconds: float, count: float = 1) -> float:
        """Return the seconds of a number of steps on this machine.

        seconds: of a step on the machine of 2026-11-28.
        """
        return seconds * count * self.rates.slowness

    def forward(self, prompts: float, tokens: float, answers: float = 1) -> float:
        """Return the seconds of prompts. tokens, answers: tokens and logits of each prompt."""
        return prompts * (tokens * self.rates.token + answers * self.rates.answer)

    def _model(self, stage: str, count: float, counted: str, cpu: float, working: float) -> CostRow:
        """Return a stage with the model in one process. working: bytes besides the weights."""
        workers = 1 if cpu < self.steps(STARTED) else environment.workers()
        alone = self.steps(STARTED)
        cpu += alone + self.rates.start
        memory = self.loaded + working
        return CostRow((stage,), count, counted, cpu, memory, workers=workers, alone=alone)

    def _runs(
        self,
        stage: str,
        runs: float,
        share: float,
        each: float = RUN,
        *,
        varies: bool = False,
        guessed: bool = False,
        answers: float = 1,
    ) -> CostRow:
        """Return a stage of runs.

        share: tokens of a run that pass all layers, on average; answers: positions of a run whose
        logits of the whole vocabulary are computed.
        """
        workers = environment.workers()
        passed = PASSED if self.weights <= CACHED else 1
        passes = passed * self.forward(runs, share, answers)
        alone = self.steps(STARTED + PLANNED_RUNS)
        cpu = alone + workers * self.rates.start + passes + self.steps(each, runs)
        disk = RUN_ROW * runs
        memory = self.loaded + self._in_runs()
        return CostRow((stage,), runs, "runs", cpu, memory, disk, workers, alone, varies, guessed)

    def _in_runs(self) -> float:
        """Return the bytes of a worker's forward passes, within the bound of the settings."""
        a, rows = self.a, self.runs.rows
        activations = rows * (8 * a.width + 4 * a.neurons + 4 * a.heads * a.head_width) * self.bytes
        logits = rows * a.vocabulary * (self.bytes + 2 * max(4, self.bytes))
        half = max(0, self.runs.memory - FIXED) / 2
        return FIXED + min(activations, half) + min(logits, half / 2)

    def _in_pass(self, prompts: float, tokens: float) -> float:
        """Return the bytes of a forward pass without interventions and logits."""
        return prompts * tokens * 4 * (self.a.width + self.a.neurons) * self.bytes

    def _answered(self, count: float, tokens: float, answers: float = 1) -> float:
        """Return the bytes of a pass of at most `count` prompts, whose logits fit a bound."""
        logits = answers * self.a.vocabulary * self.bytes
        fitting = min(LOGITS // logits, VALUES // self._in_pass(1, tokens))
        prompts = min(self.passes.prompts, count, max(1, fitting))
        return self._in_pass(prompts, tokens) + 2 * min(LOGITS, prompts * logits)

    def _maps(
        self,
        stage: str,
        seconds: float,
        memory: float,
        shared: bool = True,
        grids: bool = False,
        lists: float = 0,
    ) -> CostRow:
        """Return a stage over all maps.

        seconds: of all maps on one core; memory: bytes besides the libraries; shared: whether
        workers or threads share the maps; grids: whether each worker needs the operators' grids
        with all heuristics; lists: seconds of Python, which threads do not share.
        """
        workers = environment.workers() if shared else 1
        alone = self.steps(STARTED) + lists
        if grids:
            alone += self.steps(GRID, self.operators)
        cpu, memory = alone + seconds, ARRAYS + memory
        return CostRow((stage,), self.maps, "maps", cpu, memory, 0, workers, alone=alone)

    def _store(self) -> Iterator[CostRow]:
        prompts, workers = self.prompts, environment.workers()
        several = self.settings.answer_token is not None
        tokenized = self.steps(TOKENIZED, self.grid if several else self.grid / 25)
        memory = LIBRARIES + 300 * self.grid + TOKEN * self.a.vocabulary
        cpu = self.steps(STARTED) + tokenized
        yield CostRow(("store/prompts",), self.grid, "prompts", cpu, memory)
        dump = Dump(**self.params["dump"])
        values = int(self.a.neurons * self.kept)
        stored = np.dtype(dump.store_dtype).itemsize * values
        fitting = dump.prompts_per_block(values, self.settings.dtype)
        block = min(fitting, self.cells)
        passes = STORED * self.forward(self.grid, prompts.own)
        alone = self.steps(STARTED)
        cpu = alone + workers * self.rates.start + passes
        logits = self.passes.prompts * self.a.vocabulary * self.bytes + LOGITS
        held: float = block * (stored + 4 * self.a.neurons) + PLANNED * self.grid + logits
        held += self.loaded + self._in_pass(self.passes.prompts, prompts.own)
        disk = self.grid * (stored + PREDICTION_ROW)
        yield CostRow(("store/dump",), self.grid, "prompts", cpu, held, disk, workers, alone)
        real = self.params["real_tasks"]
        tasks, tokens = len(TASKS) * real["evaluation_prompts"], (1 + real["examples"]) * PLACES
        working = self._answered(tasks / LENGTHS, tokens)
        cpu = self.forward(tasks, tokens)
        yield self._model("store/task_predictions", tasks, "prompts", cpu, working)
        whole = self.grid if several else 0
        tokens = prompts.own + prompts.answer - 1  # prompts with the same op1 share the others
        cpu = self.forward(whole, tokens, prompts.answer)
        working = self._answered(whole, tokens, prompts.answer) + LISTED * whole
        yield self._model("store/answer_accuracy", whole, "prompts", cpu, working)
        yield CostRow(("store/architecture",), 1, "model", self.steps(STARTED), self.loaded)

    def _circuit(self, sizes: Sizes) -> Iterator[CostRow]:
        probes, length = self.params["probes"], self.prompts.length
        unshared = self.prompts.unshared
        prompts = sum(min(probes["prompts"], cells) for cells in self.answered_by_operator)
        fits = prompts * self.depth * ROLES * 2 * self.a.width**2 * self._product()
        cpu = self.forward(prompts, unshared, 0) + fits
        streams = 4 * ROLES * prompts / self.operators * self.a.width * 8  # of a level, and copies
        yield self._model(
            "circuit/probes",
            prompts,
            "prompts",
            cpu,
            streams + min(HELD, self._in_pass(self.passes.prompts, unshared)),
        )
        pairs = self.pairs(sizes)
        cpu = self.forward(pairs, length, 0)
        yield self._model("circuit/attention_patterns", pairs, "prompts", cpu, 0)
        yield self._runs("circuit/component_runs", self.components(sizes), self._after() / 2)
        tokens = self.in_circuits(sizes)
        circuits = self.head_circuits(sizes)
        yield self._runs("circuit/head_circuit_runs", circuits, min(tokens, length - 1))
        yield self._runs("circuit/cut_runs", CUTS * pairs, tokens)

    def in_circuits(self, sizes: Sizes) -> float:
        """Return the tokens of a run with patches at all positions.

        A pass computes the tokens that all prompts begin with once, for the pairs of one operator
        and one length.
        """
        length, unshared = self.prompts.length, self.prompts.unshared
        together = min(self.pairs(sizes) / self.operators / LENGTHS, self.runs.rows / length)
        return unshared + (length - unshared) / max(1.0, together)

    def _after(self, roles: int = ROLES) -> float:
        """Return the tokens from a patched role to the end, the mean over the first roles."""
        own = self.prompts.own
        return sum((own + 2, own + 1, 2, 1)[:roles]) / roles

    def _after_neurons(self, sizes: Sizes) -> float:
        """Return the share of layers after a neuron, the mean over all layers or the late ones."""
        layers = self.depth if self._patches_all(sizes) else self.late
        return (layers - 1) / 2 / self.depth

    def _product(self) -> float:
        """Return the seconds of one multiplication."""
        return self.rates.answer / (self.a.vocabulary * self.a.width)

    def swept(self) -> float:
        """Return the tokens of a run with one neuron patched, as if they passed all layers.

        A run passes only the layers after the patched one.
        """
        late = self.late * (self.late - 1) / 2 / self.depth
        first = OPERANDS * self._after(OPERANDS) * (self.depth - 1) / self.depth
        return (late + first) / (self.late + OPERANDS)

    def _neurons(self, sizes: Sizes) -> Iterator[CostRow]:
        pairs, length = self.pairs(sizes), self.prompts.length
        tokens = min(self.in_circuits(sizes), length - 1)
        yield self._model("neurons/token_activations", self.cells**0.5, "numbers", 0, 0)
        yield self._runs("neurons/neuron_runs", self.neurons(sizes), self.swept())
        estimates = self.attributions(sizes)
        cpu = self.forward(pairs, 3.5 * length, 3.5) + self.steps(ESTIMATED, estimates)
        rows = min(self.runs.rows, pairs / self.operators * length)
        kept = rows * self.depth * (8 * self.a.width + 6 * self.a.neurons) * self.bytes
        kept = min(kept, max(0, self.runs.memory - FIXED) / 2)  # for gradients
        memory = self._in_runs() + kept + 4 * estimates
        row = self._model("neurons/neuron_attributions", pairs, "pairs", cpu, memory)
        yield replace(row, disk=ESTIMATE_ROW * estimates)
        yield self._runs("neurons/neuron_circuit_runs", self.neuron_circuits(sizes), tokens)
        after = self._after_neurons(sizes)
        yield self._runs("neurons/logit_shifts", self.shifts(sizes), after, answers=0)
        cpu = self.forward(2 * pairs, length)
        working = self._answered(2 * pairs, length)
        yield self._model("neurons/tuned_lens", 2 * pairs, "prompts", cpu, working)

    def _heuristics(self, sizes: Sizes) -> Iterator[CostRow]:
        at_once, kernels = self.params["scores"]["neurons_per_unit"], self.kernels
        several = SEVERAL if self.settings.answer_token is not None else 1.0
        scores = several * kernels.scores * self.answered_maps
        rows = self.steps(SCORED_MAP + SCORED_CELL * self.cells, self.maps)
        # for one token of several, value logits are copied to each answer
        copies = 15 if self.settings.answer_token is None else 20
        # the cells of heuristics are found before maps are read
        memory = max(SATISFIED * self.corpus, copies * at_once * self.cells)
        yield self._maps("heuristics/scores", scores + rows, memory, grids=True)
        draws = several * DRAWS * kernels.draw * self.whole_maps
        yield self._maps("heuristics/permutation_tests", draws, memory, grids=True)
        overlaps = self.steps(OVERLAPS, self.answered)
        compared = SATISFIED * self.corpus + 1600 * self.cells + LISTED_MATCH * self.matches / 2
        yield self._maps("heuristics/heuristic_overlaps", overlaps, compared, False)
        lists = self.steps(PART, self.maps / self.params["spectra"]["neurons_at_once"])
        spectra = kernels.spectrum * self.whole_maps
        components = COMPONENT * self.params["spectra"]["components"] * self.maps
        held = 300 * environment.workers() * self.cells + components
        yield self._maps("heuristics/spectra", spectra, held, lists=lists)
        explained = LABELLED * kernels.explained * self.answered_maps
        held = SATISFIED_BY_LABELS * self.corpus + 300 * self.cells + EXPLAINED * self.maps
        yield self._maps("heuristics/explained", explained, held)
        searches = SEARCHES * kernels.search * self.answered_maps
        held = memory + 1100 * self.cells
        yield self._maps("heuristics/discovery_search", searches, held, grids=True)
        shifted = self.shifted(sizes)
        rescored = RESCORED * scores * shifted / self.maps
        held = SATISFIED_BY_SOME * self.corpus + 600 * self.cells
        row = self._maps("heuristics/label_rescores", rescored, held, False)
        yield replace(row, count=shifted)
        held = max(COVERED * self.corpus, 19 * at_once * self.cells)
        yield self._maps("claims/fault_scores", FAULTY * scores, held, grids=True)

    def _bag(self, sizes: Sizes) -> Iterator[CostRow]:
        half = self.late / self.depth
        started = self.steps(STARTED)
        cpu = started + self.steps(LISTED_PAIRS)
        memory = SMALL + LISTED_MATCH * self.matches
        yield CostRow(("bag/prompt_associations",), self.pairs(sizes), "pairs", cpu, memory)
        interventions = self.prompt_knockouts(sizes)
        cpu += self.steps(1e-5, interventions)
        memory = POLARS + LISTED_RUN * interventions + RANKED_MATCH * self.matches
        stages = ("bag/prompt_knockout_interventions",)
        yield CostRow(stages, interventions, "interventions", cpu, memory)
        yield self._runs("bag/bag_runs", self.bags(sizes), half)
        yield self._runs("bag/knockout_runs", self.knockouts(sizes), 0.75, varies=True)
        neurons = self.neuron_knockouts(sizes)
        after = self._after_neurons(sizes)
        yield self._runs("bag/neuron_knockout_runs", neurons, after, varies=True)
        embeddings = 2 * self.a.vocabulary * self.a.width * self.bytes
        each = SINGLE * self.depth + READ * half * max(0.0, self.weights - embeddings)
        yield self._runs("bag/prompt_knockout_runs", interventions, half, each)
        maps = self.late * self.a.neurons * self.operators
        cpu = started + self.steps(DIGITS, maps * self.cells)
        memory = ARRAYS + LISTED_CELL * self.corpus + 400 * self.cells
        yield CostRow(("bag/digit_means",), maps, "maps", cpu, memory)
        draws = self._steered_digits() + 2
        disk = 4 * draws * self.pairs(sizes) * self.late * self.a.neurons
        cpu, memory = started + self.steps(LISTED_PAIRS), TORCH + disk / draws
        yield CostRow(("bag/steering_given",), draws, "arrays", cpu, memory, disk)
        yield self._runs("bag/steering_runs", self.steering(sizes), half)
        cpu = started + self.steps(SUMMED, maps * self.cells)
        cpu += self.steps(JOINED, self.matches * self.cells)
        memory = ARRAYS + SATISFIED_BY_SOME * self.corpus + 600 * self.cells
        memory += LISTED_MATCH * self.matches
        yield CostRow(("bag/failures",), maps, "maps", cpu, memory)

    def _theories(self, sizes: Sizes) -> Iterator[CostRow]:
        helix, pairs, width = self.params["helix"], self.pairs(sizes), self.a.width
        levels = self.operators * (self.depth + 1)
        sample = min(helix["prompts"], self.cells) + pairs / self.operators
        unshared = self.prompts.unshared
        cpu = self.operators * self.forward(sample, unshared)
        share = (4 * self._fitted_twice + 2) / 10  # of the fits that HELIX stands for
        cpu += self.steps(HELIX, share * levels * width)
        values = 18 * (3 * self.depth - 1) * pairs * width
        streams = 12 * sample * width * 8  # of a level, and copies
        level = 24 * values / (3 * self.depth - 1) + streams
        memory = level + min(HELD, self._in_pass(self.passes.prompts, unshared))
        row = self._model("theories/helix_fits", levels, "layers", cpu, memory)
        yield replace(row, disk=4 * values)
        yield self._runs("theories/helix_runs", self.helices(sizes), self._after() / 2)
        neurons = self.a.neurons
        maps = self.late * neurons * self.operators
        clean = pairs
        predicted = (self.theories(sizes) - clean) * self.late * neurons * 4
        fits = self.params["theory_fits"]
        cells = fits["train_cells"] + fits["held_out_cells"]
        threads = min(environment.workers(), self.operators)
        memory = ARRAYS + predicted + threads * (TERMS * cells + 512 * self.cells)
        # the control has spectra of its own
        fitted = FITTED * self.kernels.fits * maps
        fitted += self.kernels.spectrum * self.whole_maps * self.late_share
        alone = self.steps(STARTED)
        cpu = alone + self.steps(DICTIONARY, self.operators) + fitted
        row = CostRow(("theories/theory_fits",), maps, "maps", cpu, memory, predicted)
        yield replace(row, workers=threads, alone=alone)
        each = RUN + GIVEN * 4 * self.late * neurons
        yield self._runs("theories/theory_runs", self.theories(sizes), self.late / self.depth, each)

    def _mediation(self, sizes: Sizes) -> Iterator[CostRow]:
        pairs = self.mediation_pairs(sizes)
        cpu = self.steps(STARTED + LISTED_PAIRS)
        memory = LIBRARIES + TOKEN * self.a.vocabulary
        yield CostRow(("mediation/mediation_pairs",), pairs, "pairs", cpu, memory)
        # patches of examples, which both prompts of a pair share, are listed and not run
        components = 2 + self.a.heads * self._single(
            sizes.single_heads,
            "mediation_interventions",
            "single_heads",
        )
        patches, runs = components * self.depth * PLACES * pairs, self.mediation(sizes)
        share = MOVING * (PLACES + 1) / 2 / 2 * patches / runs
        yield self._runs("mediation/mediation_runs", runs, share)
        through = (self.late - 1) / 2 / self.depth
        yield self._runs("mediation/unit_mediation_runs", self.units(sizes), through)

    def _others(self, sizes: Sizes, kinds: dict[str, Kind]) -> Iterator[CostRow]:
        """Yield the costs of stages without a row of their own, by their kind.

        kinds: of these stages. An experiment of the user is taken to have an intervention for each
        layer, as `bag new experiment` writes it.
        """
        of_kind: dict[Kind, list[str]] = {"runs": [], "query": [], "figures": []}
        for stage, kind in kinds.items():
            of_kind[kind].append(stage)
        for stage in of_kind["runs"]:
            runs = (self.depth + 1) * self.pairs(sizes)
            yield self._runs(stage, runs, 0.5, guessed=True)
        if of_kind["query"]:
            yield self._queries(sizes, tuple(of_kind["query"]))
        if of_kind["figures"]:
            count = len(of_kind["figures"])
            cpu, stages = self.steps(STARTED + FIGURE, count), tuple(of_kind["figures"])
            memory: float = LIBRARIES + DRAWN_CELL * self.cells
            if any(stage.startswith("heuristics/") for stage in stages):
                cpu += self.steps(DRAWN, self.matches)
                memory += DRAWN_MATCH * self.matches
            yield CostRow(stages, count, "figures", cpu, memory, 10 << 20)

    def _queries(self, sizes: Sizes, stages: tuple[str, ...]) -> CostRow:
        """Return all queries, and other programs that read tables, as one row."""
        shown = any(stage.startswith("neurons/") for stage in stages)
        counts = (self.neurons, self.neuron_knockouts, self.mediation, self.units)
        rows = shown * sum(count(sizes) for count in counts)
        estimates = shown * self.attributions(sizes)
        cpu = self.steps(STARTED, len(stages)) + self.steps(ROW, rows)
        matches = shown * self.matches
        cpu += self.steps(AVERAGED, estimates) + self.steps(MATCHED, matches)
        together = min(1, LARGEST / self.operators) * matches
        memory = LIBRARIES + max(200 * rows + GROUPED * estimates, MATCH * together)
        return CostRow(stages, len(stages), "queries", cpu, memory, 4 * rows)
