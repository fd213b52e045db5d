"""What every stage will cost for a model that nobody has run yet: time, memory and disk.

Each row counts what its stage counts (prompts, runs, maps) from the settings and the architecture,
and multiplies by what one of them takes. Forward passes take what `rates` says. The constants
below were measured on the subjects of this project, on two cores with AVX-512, by the times at
which their outputs were written and by the processor's time of single stages (November 2026).
Late layers, known only once there are probes, are taken for the second half.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from stages.lib.ask import LOGITS
from stages.lib.core import machine
from stages.lib.core.settings import read
from stages.lib.core.words import ARITHMETIC
from stages.lib.executor.blocks import FIXED
from stages.lib.model.architecture import Architecture
from stages.lib.model.prefixes import FEWEST
from stages.lib.settings import Passes, Runs
from stages.lib.subject import Sizes, SubjectSettings
from stages.store.rates import Rates

ROLES, OPERANDS = 4, 3  # positions that are patched; those at which layer 0's neurons are
KINDS = {
    "arithmetic": 72,
    "number_words": 60,
    "three_operands": 87,
    "retrieval": 8,
    "factual": 6,
}  # of pairs: conditions, templates, operators
QUESTIONS = {
    "arithmetic": (4, 32),
    "number_words": (30,),
    "three_operands": (29,),
    "retrieval": (8,),
    "factual": (6,),
}  # of these kinds, those on which single units may be patched, by question
PLACES = 11  # tokens of such a prompt, on average
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

# Seconds of a core, beside forward passes.
TOKENIZED = 6e-5  # a prompt that is tokenized and searched for its operands
STORED = 1.1  # times its forward passes, a dump takes: sums of all activations, HDF5
REPEATED = 4e-8  # a coordinate of the prefix's keys and values, repeated for each prompt of a row
STARTED = 7.0  # a stage that imports torch and transformers, whose workers are forks
PASSED = 0.75  # times its forward passes, a run takes: passes of runs are larger
RUN = 5e-6  # a run: its patch, its measures, its row
HELD = 1 << 30  # bytes of a pass that keeps residual streams, at most
SINGLE = 4e-4  # a run on a pair of its own, which shares no pass
MOVING = 0.4  # of mediation's runs, the share that changes anything before the last layer's end
SCORES = 1.1e-2 / 90_000  # a map and cell
# A map, and a cell of it, relabelled: 6.9 ms for 900 cells, 16.4 for 10,000, 57 to 91 for 90,000.
NULLS, NULLS_CELL = 6e-3, 7.5e-2 / 90_000
SPECTRA = 3.4e-3 / 90_000  # a map and cell
EXPLAINED, FAULTS = 2.4e-3 / 90_000, 3.5e-3 / 90_000  # a map and cell
FITTED = 4.5e-3  # a late neuron's map, by three theories
HELIX = 7e-3  # a layer and operator, for each coordinate of the residual stream
ESTIMATED = 4e-7  # an attribution: its row
AVERAGED = 3.5e-7  # an attribution: its part of the means of queries
SUMMED = 2e-8  # a late neuron and prompt in failures
QUERY, ROW = 4.0, 4e-6  # a query, most of which is DVC's own time; a row of runs in queries
FIGURE = 12.0  # figures of a chapter, or a page
# Bytes.
LIBRARIES, ARRAYS = (
    480 << 20,
    194 << 20,
)  # a process that imported torch, or no torch
SMALL = 300 << 20  # tables alone, with DuckDB and Polars
RUN_ROW, PREDICTION_ROW, ESTIMATE_ROW = 20, 6, 4  # a row on disk
GROUPED = 25  # an attribution that queries average
PLANNED, LISTED = 500, 4000  # a prompt in a dump's plan, and in lists of tokens
TERMS = 80_000  # a cell: the terms that three theories choose from
# What is found decides how much these do; the counts are those of models whose neurons nearly all
# stand for something.
SCORED = 0.9  # of neurons that match a heuristic, and are ablated one by one
KNOCKED = 130  # heuristics of an operator whose neurons are ablated together
BAGS = 34  # interventions of an operator that keep a bag of neurons
CUTS = 6  # circuits of an operator with attention edges cut
ARMS = 5 * 2 * 2  # of ablations by prompt: arms, criteria, replacements

QUERIES = {
    "store": ["accuracy", "task_accuracy", "neuron_variances"],
    "circuit": [
        "late_layers", "pairs", "component_interventions", "component_effects", "circuit_heads",
        "cut_faithfulness",
    ],
    "neurons": ["neuron_interventions", "neuron_effects", "neuron_rankings", "faithfulness"],
    "heuristics": ["matches", "labels"],
    "bag": ["knockout_interventions", "knockout_effects", "failure_tests"],
    "theories": ["theory_interventions", "theories"],
    "mediation": [
        "mediation_interventions", "mediation_effects", "mediation_by_pair",
        "unit_mediation_interventions", "unit_effects",
    ],
    "claims": ["faults"],
}  # fmt: skip
FIGURES = {
    "store": ["figures"],
    "circuit": ["circuit_figures"],
    "neurons": ["neuron_figures"],
    "heuristics": ["heuristic_figures"],
    "bag": ["causal_figures"],
    "theories": ["theory_figures"],
    "mediation": ["mediation_figures"],
    "claims": ["claims"],
    "report": ["report_data"],
}


@dataclass(frozen=True)
class Row:
    """One stage, or several cheap ones together.

    stages: chapter/stage; cpu: seconds of one core; memory: bytes of one worker at its peak; disk:
    bytes that stay; workers: processes that share the work; most: whether it may take far less.
    """

    stages: tuple[str, ...]
    count: float
    counted: str
    cpu: float
    memory: float
    disk: float = 0
    workers: int = 1
    most: bool = False

    @property
    def name(self) -> str:
        return self.stages[0] if len(self.stages) == 1 else self.counted

    @property
    def wall(self) -> float:
        """Seconds on this machine."""
        return self.cpu / self.workers


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of a grid's longest prompt, of its part from op2 on, and of the longest answer."""

    length: int = 5
    own: int = 2
    answer: int = 1

    @property
    def behind(self) -> int:
        """Tokens behind those that all prompts begin with, where these are computed only once."""
        shared = self.length - self.own - 2
        return self.length - shared if shared >= FEWEST else self.length


class Costs:
    """The costs of one model with an entry's settings.

    side: operands of the grid; weights: bytes of the weights in memory; rates: of this machine.
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
        self.depth, self.operators = len(a.layers), len(settings.operators)
        self.cells = side**2
        self.grid = self.operators * self.cells
        self.kept = len(settings.kept_layers(self.depth))
        self.late = self.depth - self.depth // 2
        self.passes = settings.passes or Passes(**self.params["passes"])
        self.runs = settings.runs or Runs(**self.params["runs"])
        self.bytes = BYTES[settings.dtype]
        self.weights, self.loaded = weights, LIBRARIES + weights

    @property
    def maps(self) -> int:
        """Neurons' maps: of each kept layer and operator."""
        return self.a.neurons * self.kept * self.operators

    def rows(self, sizes: Sizes, section: str = "subjects") -> list[Row]:
        """Return the costs of every stage of a model in this section of params.yaml."""
        rows = list(self._store())
        if section == "subjects":
            chapters = (
                self._circuit, self._neurons, self._heuristics, self._bag, self._theories,
                self._mediation,
            )  # fmt: skip
            for chapter in chapters:
                rows += chapter(sizes)
        chapters_shown = QUERIES.keys() | FIGURES.keys() if section == "subjects" else {"store"}
        rows.append(self._queries(sizes, chapters_shown))
        rows.append(self._figures(chapters_shown))
        return rows

    # Prompts, pairs and runs, as the chapters' tables count them.

    def pairs(self, sizes: Sizes) -> int:
        """Return the pairs of prompts of one split."""
        usual = self.params["pairs"]
        each = sizes.pairs_per_split or usual["pairs_per_split"]
        return each * len(usual["seeds"]) * self.operators

    def components(self, sizes: Sizes) -> int:
        """Return the runs with one MLP or head patched."""
        return (self.depth * (self.a.heads + 1) * ROLES + 1) * self.pairs(sizes)

    def head_circuits(self, sizes: Sizes) -> int:
        """Return the runs with all heads but a few ablated: three rankings, random ones, ends."""
        heads = self.depth * self.a.heads
        settings = self.params["head_circuits"]
        counts = {min(count, heads) for count in settings["head_counts"]} | {heads}
        random = settings["random_circuits"]
        drawn = len(counts) + (random - 1) * (len(counts) - 2) if random else 0
        return (3 * len(counts) + drawn + 3) * self.pairs(sizes)

    def neurons(self, sizes: Sizes) -> int:
        """Return the runs with one neuron patched."""
        patched = self.patched(sizes) + self.sampled(sizes)
        neurons = min(patched, self.a.neurons)
        return ((self.late + OPERANDS) * neurons + 1) * self.pairs(sizes)

    def patched(self, sizes: Sizes) -> int:
        """Return how many neurons of a layer are patched for each operator, random ones aside."""
        few = sizes.patched_neurons or self.params["neuron_interventions"]["patched_neurons"]
        return min(few or self.a.neurons, self.a.neurons)

    def sampled(self, sizes: Sizes) -> int:
        """Return how many random neurons of a layer are patched besides."""
        own, usual = sizes.sampled_neurons, self.params["neuron_interventions"]["sampled_neurons"]
        return usual if own is None else own

    def attributions(self, sizes: Sizes) -> int:
        """Return the estimates of neurons' effects, one for each neuron, position and pair."""
        return (self.late + OPERANDS) * self.a.neurons * self.pairs(sizes)

    def neuron_circuits(self, sizes: Sizes) -> int:
        """Return the runs with neurons ablated but for the first k of four rankings or lots.

        Three rankings end with the neurons that are patched.
        """
        settings = self.params["neuron_circuits"]
        ks = [k for k in settings["neurons_per_layer"] if k < self.a.neurons]
        patched = sum(k <= self.patched(sizes) for k in ks)
        circuits = 3 * patched + (1 + settings["random_circuits"]) * len(ks)
        return (2 * circuits + 3) * self.pairs(sizes)

    def neuron_knockouts(self, sizes: Sizes) -> int:
        """Return the runs with one neuron ablated, to zero and to its mean.

        Layers before the late ones have no attributions, so only random neurons where few are patched.
        """
        scored, patched, late = (
            SCORED * self.a.neurons,
            self.patched(sizes),
            min(self.late, self.kept),
        )
        early = scored if patched == self.a.neurons else self.sampled(sizes)
        neurons = late * min(scored, patched + self.sampled(sizes)) + (self.kept - late) * min(
            scored,
            early,
        )
        return int((2 * neurons + 1) * self.pairs(sizes))

    def knockouts(self, sizes: Sizes) -> int:
        """Return the runs with a heuristic's neurons, or a control's, ablated."""
        draws = self.params["knockouts"]["control_draws"]
        return (2 * (1 + draws) * KNOCKED + 1) * self.pairs(sizes)

    def prompt_knockouts(self, sizes: Sizes) -> int:
        """Return the runs with neurons chosen for the one prompt ablated."""
        counts = len(self.params["prompt_knockouts"]["neurons_per_layer"])
        return (ARMS * counts + 1) * self.pairs(sizes)

    def helices(self, sizes: Sizes) -> int:
        """Return the runs with a residual stream replaced by nine theories at operands and last."""
        return (18 * (3 * self.depth - 1) + 1) * self.pairs(sizes)

    def theories(self, sizes: Sizes) -> int:
        """Return the runs with the late neurons replaced by what three theories predict."""
        budgets = len(self.params["theory_fits"]["budgets"])
        return (3 * (budgets + 1) + 3) * self.pairs(sizes)

    def mediation_pairs(self, sizes: Sizes) -> int:
        """Return the pairs of every task; where too few fit, there are fewer."""
        each = self.per_template(sizes)
        return sum(KINDS.get(task, 1) * count for task, count in each.items())

    def per_template(self, sizes: Sizes) -> dict[str, int]:
        return self.params["mediation"]["pairs_per_template"] | (sizes.pairs_per_template or {})

    def mediation(self, sizes: Sizes) -> int:
        """Return the runs with one MLP, attention block or head patched at one token."""
        single = self._single(sizes.single_heads, "mediation_interventions", "single_heads")
        components = 2 + self.a.heads * single
        pairs, examples = self.mediation_pairs(sizes), self.settings.template.count("\n")
        each = self.per_template(sizes)
        sums = sum(KINDS[task] * each[task] for task in ARITHMETIC)  # which follow solved examples
        return components * self.depth * PLACES * (pairs + examples * sums) + pairs

    def units(self, sizes: Sizes) -> int:
        """Return the runs with one late neuron, or coordinate of a late MLP's output, patched."""
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

    # What they take.

    def forward(self, prompts: float, tokens: float, answers: float = 1) -> float:
        """Return the seconds of prompts of so many tokens, with logits at so many positions."""
        return prompts * (tokens * self.rates.token + answers * self.rates.answer)

    def _model(self, stage: str, count: float, counted: str, cpu: float, working: float) -> Row:
        """One process with the model, whose threads are all cores. working: bytes beside it."""
        workers = 1 if cpu < STARTED else machine.workers()
        cpu += STARTED + self.rates.start
        return Row((stage,), count, counted, cpu, self.loaded + working, workers=workers)

    def _runs(
        self,
        stage: str,
        runs: float,
        share: float,
        each: float = RUN,
        most: bool = False,
    ) -> Row:
        """Runs that go through all layers with so many tokens, on average."""
        workers = machine.workers()
        passes = PASSED * self.forward(runs, share)
        cpu = STARTED + workers * self.rates.start + passes + each * runs
        disk = RUN_ROW * runs
        return Row((stage,), runs, "runs", cpu, self.loaded + self._in_runs(), disk, workers, most)

    def _in_runs(self) -> float:
        """Bytes of a worker's passes, within the bound that the settings set."""
        a, rows = self.a, self.runs.rows
        activations = rows * (8 * a.width + 4 * a.neurons + 4 * a.heads * a.head_width) * self.bytes
        logits = rows * a.vocabulary * (self.bytes + 2 * max(4, self.bytes))
        half = max(0, self.runs.memory - FIXED) / 2
        return FIXED + min(activations, half) + min(logits, half / 2)

    def _in_pass(self, prompts: float, tokens: float) -> float:
        """Bytes of a pass of prompts that only look, without logits."""
        return prompts * tokens * 4 * (self.a.width + self.a.neurons) * self.bytes

    def _answered(self, tokens: float, answers: float = 1) -> float:
        """Bytes of a pass of prompts, few enough for their logits to fit into a bound."""
        logits = answers * self.a.vocabulary * self.bytes
        prompts = min(self.passes.prompts, max(1, LOGITS // logits))
        return self._in_pass(prompts, tokens) + 2 * min(LOGITS, prompts * logits)

    def _maps(self, stage: str, each: float, per_map: int, shared: bool = True) -> Row:
        """Work on every map. per_map: bytes of a map's cell, times the maps held at once."""
        workers = machine.workers() if shared else 1
        cpu = QUERY + each * self.maps
        return Row((stage,), self.maps, "maps", cpu, ARRAYS + per_map * self.cells, 0, workers)

    def _store(self) -> Iterator[Row]:
        prompts, workers = self.prompts, machine.workers()
        several = self.settings.answer_token is not None
        tokenized = TOKENIZED * self.grid if several else self.grid * TOKENIZED / 10
        memory = LIBRARIES + 300 * self.grid
        yield Row(("store/prompts",), self.grid, "prompts", 7 + tokenized, memory)
        block = min(self.params["dump"]["cells_per_block"], self.cells)
        stored = 2 * self.a.neurons * self.kept
        prefix = (prompts.length - prompts.own) * self.depth * self.a.heads * self.a.head_width
        passes = STORED * self.forward(self.grid, prompts.own) + REPEATED * self.grid * prefix
        cpu = STARTED + workers * self.rates.start + passes
        logits = self.passes.prompts * self.a.vocabulary * self.bytes + LOGITS
        held = block * (stored + 4 * self.a.neurons) + PLANNED * self.grid + logits
        held += self.loaded + self._in_pass(self.passes.prompts, prompts.own)
        disk = self.grid * (stored + PREDICTION_ROW)
        yield Row(("store/dump",), self.grid, "prompts", cpu, held, disk, workers)
        tasks = 6 * self.params["tasks"]["evaluation_prompts"]
        working = self._answered(2 * PLACES)
        cpu = self.forward(tasks, 2 * PLACES)
        yield self._model("store/task_predictions", tasks, "prompts", cpu, working)
        whole = self.grid if several else 0
        tokens = prompts.behind + prompts.answer - 1
        cpu = self.forward(whole, tokens, prompts.answer)
        working = self._answered(tokens, prompts.answer) + LISTED * whole
        yield self._model("store/answer_accuracy", whole, "prompts", cpu, working)
        yield Row(("store/architecture",), 1, "model", STARTED, LIBRARIES)

    def _circuit(self, sizes: Sizes) -> Iterator[Row]:
        probes, length = self.params["probes"], self.prompts.length
        behind = self.prompts.behind
        prompts = self.operators * min(probes["prompts"], self.cells)
        fits = prompts * self.depth * ROLES * 12 * self.a.width**2 * self._product()
        cpu = self.forward(prompts, behind, 0) + fits
        streams = 4 * ROLES * prompts / self.operators * self.a.width * 8  # one level's, and copies
        yield self._model(
            "circuit/probes",
            prompts,
            "prompts",
            cpu,
            streams + min(HELD, self._in_pass(self.passes.prompts, behind)),
        )
        pairs = self.pairs(sizes)
        cpu = self.forward(pairs, length, 0)
        yield self._model("circuit/attention_patterns", pairs, "prompts", cpu, 0)
        yield self._runs("circuit/component_runs", self.components(sizes), self._after() / 2)
        yield self._runs("circuit/head_circuit_runs", self.head_circuits(sizes), length - 1)
        yield self._runs("circuit/cut_runs", CUTS * pairs, length)

    def _after(self, roles: int = ROLES) -> float:
        """Tokens from the last token of op1, operator, op2 or last on: mean of the first roles."""
        own = self.prompts.own
        return sum((own + 2, own + 1, 2, 1)[:roles]) / roles

    def _product(self) -> float:
        """Seconds of one multiplication."""
        return self.rates.answer / (self.a.vocabulary * self.a.width)

    def swept(self) -> float:
        """Tokens of a run with one neuron patched, as if they passed all layers."""
        late, first = self.late**2 / self.depth / 2, self._after(OPERANDS) * OPERANDS
        return (late + first) / (self.late + OPERANDS)

    def _neurons(self, sizes: Sizes) -> Iterator[Row]:
        pairs, length = self.pairs(sizes), self.prompts.length
        yield self._model("neurons/token_activations", self.cells**0.5, "numbers", 0, 0)
        yield self._runs("neurons/neuron_runs", self.neurons(sizes), self.swept())
        estimates = self.attributions(sizes)
        cpu = self.forward(pairs, 6 * length, 6) + estimates * ESTIMATED
        memory = self._in_runs() + 4 * estimates
        row = self._model("neurons/neuron_attributions", pairs, "pairs", cpu, memory)
        yield replace(row, disk=ESTIMATE_ROW * estimates)
        yield self._runs("neurons/neuron_circuit_runs", self.neuron_circuits(sizes), length - 1)

    def _heuristics(self, _: Sizes) -> Iterator[Row]:
        at_once = self.params["scores"]["neurons_per_unit"]
        yield self._maps("heuristics/scores", SCORES * self.cells, 15 * at_once)
        nulls = self._maps("heuristics/nulls", NULLS + NULLS_CELL * self.cells, 15 * at_once)
        yield nulls
        yield self._maps("heuristics/heuristic_overlaps", SCORES * self.cells / 60, 5000, False)
        yield self._maps("heuristics/spectra", SPECTRA * self.cells, 256, False)
        yield self._maps("heuristics/explained", EXPLAINED * self.cells, 1600, False)
        yield self._maps("claims/fault_scores", FAULTS * self.cells, 19 * at_once, False)

    def _bag(self, sizes: Sizes) -> Iterator[Row]:
        half = self.late / self.depth
        yield Row(("bag/prompt_associations",), self.pairs(sizes), "pairs", 2, SMALL)
        chosen = self.prompt_knockouts(sizes)
        cpu = 2 + 1e-5 * chosen
        yield Row(("bag/prompt_knockout_interventions",), chosen, "interventions", cpu, SMALL)
        bags = BAGS * self.pairs(sizes)
        yield self._runs("bag/bag_runs", bags, half)
        yield self._runs("bag/knockout_runs", self.knockouts(sizes), half, most=True)
        neurons = self.neuron_knockouts(sizes)
        yield self._runs("bag/neuron_knockout_runs", neurons, 0.5, most=True)
        yield self._runs("bag/prompt_knockout_runs", chosen, half, SINGLE)
        maps = self.late * self.a.neurons * self.operators
        cpu = QUERY + SUMMED * maps * self.cells
        yield Row(("bag/failures",), maps, "maps", cpu, ARRAYS + 2300 * self.cells)

    def _theories(self, sizes: Sizes) -> Iterator[Row]:
        helix, pairs, width = self.params["helix"], self.pairs(sizes), self.a.width
        levels = self.operators * (self.depth + 1)
        sample = min(helix["prompts"], self.cells) + pairs / self.operators
        behind = self.prompts.behind
        cpu = self.operators * self.forward(sample, behind) + HELIX * levels * width
        values = 18 * (3 * self.depth - 1) * pairs * width
        streams = 12 * sample * width * 8  # one level's, and copies
        level = 24 * values / (3 * self.depth - 1) + streams
        memory = level + min(HELD, self._in_pass(self.passes.prompts, behind))
        fits = self._model("theories/helix_fits", levels, "layers", cpu, memory)
        yield Row(fits.stages, fits.count, fits.counted, cpu, fits.memory, 4 * values)
        yield self._runs("theories/helix_runs", self.helices(sizes), self._after() / 2)
        neurons = self.a.neurons
        maps = self.late * neurons * self.operators
        told = 17 * pairs * self.late * neurons * 4
        fits = self.params["theory_fits"]
        cells = fits["train_cells"] + fits["held_out_cells"]
        memory = ARRAYS + told + TERMS * cells + 512 * self.cells
        yield Row(("theories/theory_fits",), maps, "maps", QUERY + FITTED * maps, memory, told)
        yield self._runs("theories/theory_runs", self.theories(sizes), self.late / self.depth)

    def _mediation(self, sizes: Sizes) -> Iterator[Row]:
        pairs = self.mediation_pairs(sizes)
        yield Row(("mediation/mediation_pairs",), pairs, "pairs", 6, LIBRARIES)
        # patches of examples, which both prompts of a pair share, are written down and not run
        components = 2 + self.a.heads * self._single(
            sizes.single_heads,
            "mediation_interventions",
            "single_heads",
        )
        patches, runs = components * self.depth * PLACES * pairs, self.mediation(sizes)
        share = MOVING * (PLACES + 1) / 2 / 2 * patches / runs
        yield self._runs("mediation/mediation_runs", runs, share)
        through = self.late / self.depth / 2
        yield self._runs("mediation/unit_mediation_runs", self.units(sizes), through)

    def _queries(self, sizes: Sizes, chapters: Iterable[str]) -> Row:
        """Every SQL stage, in one row: each takes seconds, most of which is DVC's own time."""
        stages = named(QUERIES, chapters)
        counts = (self.neurons, self.neuron_knockouts, self.mediation, self.units)
        shown = "neurons" in chapters
        rows = shown * sum(count(sizes) for count in counts)
        estimates = shown * self.attributions(sizes)
        cpu = QUERY * len(stages) + ROW * rows + AVERAGED * estimates
        memory = LIBRARIES + 200 * rows + GROUPED * estimates
        return Row(stages, len(stages), "queries", cpu, memory, 4 * rows)

    def _figures(self, chapters: Iterable[str]) -> Row:
        stages = named(FIGURES, chapters)
        cpu = FIGURE * len(stages)
        return Row(stages, len(stages), "figures and pages", cpu, LIBRARIES, 10 << 20)


def named(table: dict[str, list[str]], chapters: Iterable[str]) -> tuple[str, ...]:
    """Return chapter/stage for each stage of these chapters."""
    present = [chapter for chapter in table if chapter in chapters]
    return tuple(f"{chapter}/{stage}" for chapter in present for stage in table[chapter])
