"""Score one SQL predicate on a model's neurons, with its chance level and the maps that fit best.

    bag try "op1 % 2 = 0 and op2 % 2 = 0"
    bag try "result in 150..179" --subject planted --operator subtract --layers 1

It reads stores and tables, and runs no stage. A heuristic's name stands for its predicate.
"""

import argparse
import signal
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import numpy as np
import polars as pl

from stages.heuristics import trial as trials
from stages.heuristics.settings import Labels, PermutationTests, Portraits, Scores
from stages.heuristics.trial import USUAL_DRAWS, Budget, NeuronTest, Trial, TrialError
from stages.lib.console.output import STYLES, Look, remark, show
from stages.lib.core import environment, progress
from stages.lib.core.files import replacing
from stages.lib.core.hdf5_store import LayerStore, StoreError
from stages.lib.core.settings import load, read
from stages.lib.core.tables import TableError, read_table
from stages.lib.core.vocabulary import OPERATORS
from stages.lib.sql.database import Database
from stages.lib.subject import Subject

CELLS = Path("data/corpus/cells.parquet")
CATALOGUE = Path("data/heuristics/heuristics.parquet")
MOST_SHOWN = 100
TITLE = 110  # letters of a predicate in the title of the maps
COLUMNS = [
    "operator", "layer", "neuron", "side", "score", "chance_score", "chance_corrected",
    "null_95", "p_value", "q_value", "draws", "label",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scope:
    """What is scored: a model's store of one operator, and some of its layers."""

    subject: Subject
    store: LayerStore
    layers: list[int]

    @property
    def operator(self) -> str:
        return self.store.attributes["operator"]

    @property
    def neurons(self) -> int:
        """Return the number of neurons in all layers together."""
        return len(self.layers) * self.store.axes["neuron"]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="bag try",
        description=(__doc__ or "").partition("\n")[0],
        epilog="score: share of a map's k largest (side top) or smallest (bottom) cells that "
        "satisfy the predicate, which k cells satisfy. null_95: chance-corrected score that 5 % of "
        "relabellings of the operands exceed. p_value: share of relabellings that score as much. "
        "q_value: false discovery rate, for all neurons scored.",
    )
    result.add_argument(
        "predicate",
        help="SQL condition on op1, op2 and result, or the name of a heuristic (op1 mod 2 = 0)",
    )
    result.add_argument("--subject", help="model under study (default: `default` in params.yaml)")
    result.add_argument(
        "--operator", help=f"{', '.join(OPERATORS)} (default: the first that the model has)"
    )
    result.add_argument(
        "--layers",
        default="all",
        help="all that the store has (default), late (see the table late_layers), or numbers: 0,2",
    )
    result.add_argument("--best", type=int, default=10, help="neurons to show (default: 10)")
    result.add_argument(
        "--map",
        choices=["activation", "contribution"],
        help="what is scored: activations, or contributions, activation times value logit of the "
        "answer (default: contributions for the catalogue's heuristics of the result, else "
        "activations)",
    )
    result.add_argument(
        "--draws",
        type=int,
        default=USUAL_DRAWS,
        help=f"relabellings of all neurons shown together, at most (default: {USUAL_DRAWS:,})",
    )
    result.add_argument(
        "--plot", type=Path, help="file for the maps, .png (default: reports/<subject>/tried.png)"
    )
    styles = result.add_mutually_exclusive_group()
    for style in STYLES[1:]:
        meaning = f"print the rows in the style {style}, as for queries"
        styles.add_argument(
            f"--{style}", action="store_const", const=style, dest="style", help=meaning
        )
    result.set_defaults(style=STYLES[0])
    return result


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is half written
    try:
        run(options)
    except (TrialError, TableError, StoreError, OSError) as error:
        raise SystemExit(f"bag try: {error}") from None


def run(options: argparse.Namespace) -> None:
    """Score, test, print and draw. Raises TrialError before any work if an option is wrong."""
    _check_number("--best", options.best, MOST_SHOWN)
    _check_number("--draws", options.draws, 10**9)
    scope = scope_of(options)
    plot = _plot_file(options.plot, scope.subject.name)
    database = Database({"cells": [CELLS]}, threads=1)
    trial = _trial(database, options, scope)
    with ThreadPoolExecutor(environment.workers()) as threads:
        budget = Budget(scope.neurons, load(Labels).level, options.draws)
        best, tests = best_neurons(trial, scope, options.best, budget, threads)
    best = best.with_columns(label=_labels(scope, best)).select(COLUMNS)
    shown = best.with_columns(pl.col("null_95", "p_value", "q_value").round_sig_figs(3))
    database.connection.register("best_neurons", shown.to_arrow())
    show(database, "from best_neurons", {}, Look(options.style, MOST_SHOWN))
    for line in _remarks(trial, scope, best, budget):
        remark(line)
    _draw(trial, scope, best, tests, plot)
    remark(f"their maps: {plot}")


def _check_number(option: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        raise TrialError(f"{option} {value} is not allowed; give a number from 1 to {largest:,}")


def scope_of(options: argparse.Namespace) -> Scope:
    """Return what the options say is scored. Raises TrialError if it is not there."""
    if not Path("params.yaml").is_file():
        raise TrialError(f"{Path.cwd()} has no params.yaml; run bag try in the project's root")
    subject = Subject.named(options.subject or read()["default"])
    stores = {store.attributes["operator"]: store for store in subject.activation_stores()}
    name = subject.name
    needed = [subject.value_logits().path, CELLS] if stores else [subject.path("store/activations")]
    for path in needed:
        if not path.exists() or not stores:
            makes = f"dvc repro stages/store/dvc.yaml:dump@{name}"
            raise TrialError(
                f"{name} has no store yet, {path} is missing; `{makes}` makes it, "
                f"`make pull SUBJECT={name}` fetches it"
            )
    operator = options.operator or next(filter(stores.__contains__, OPERATORS))
    if operator not in stores:
        listed = ", ".join(filter(stores.__contains__, OPERATORS))
        raise TrialError(f"--operator {operator!r}: {name} has {listed}; choose one of these")
    store = stores[operator]
    return Scope(subject, store, _layers(options.layers, subject, list(store.layers)))


def _layers(text: str, subject: Subject, known: list[int]) -> list[int]:
    """Return the layers that an option names. known: those in the store."""
    if text == "all":
        return known
    if text == "late":
        [first] = subject.table("circuit/late_layers.parquet")["first_layer"]
        layers = [layer for layer in known if first is not None and layer >= first]
        if not layers:
            raise TrialError(f"--layers late: {subject.name} has no late layers; use all")
        return layers
    wanted = set(text.split(","))
    layers = [layer for layer in known if str(layer) in wanted]
    if len(layers) < len(wanted):
        unknown = ", ".join(sorted(wanted - {*map(str, known)}))
        listed = ", ".join(map(str, known))
        raise TrialError(
            f"--layers {text}: {unknown!r} is not a layer in the store of {subject.name}; "
            f"give all, late, or some of {listed}, separated by commas"
        )
    return layers


def _plot_file(file: Path | None, subject: str) -> Path:
    """Return the file of the maps. Raises TrialError if it cannot be written."""
    if file is None:
        return Path("reports") / subject / "tried.png"
    if file.suffix != ".png":
        raise TrialError(f"--plot {file}: maps are written as PNG; give a file that ends in .png")
    if not file.parent.is_dir() or file.is_dir():
        raise TrialError(f"--plot {file}: {file.parent} is not a folder; make it first")
    return file


def _trial(database: Database, options: argparse.Namespace, scope: Scope) -> Trial:
    """Return the predicate on the scope's cells. Raises TrialError if it cannot be scored."""
    catalogue = read_table(CATALOGUE)
    heuristic = trials.heuristic_of(database, options.predicate, scope.store, catalogue)
    heuristic = trials.on_map(database, heuristic, options.map)
    return trials.prepared(database, heuristic, scope.store, load(Scores).least_cells)


def best_neurons(
    trial: Trial, scope: Scope, best: int, budget: Budget, threads: Executor
) -> tuple[pl.DataFrame, list[NeuronTest]]:
    """Return the neurons of the best scores, with their tests, best first."""
    settings, value_logits = load(PermutationTests), scope.subject.value_logits()
    at_once, title = load(Scores).neurons_per_unit, f"try {scope.subject.name} {scope.operator}"
    with progress.bar(total=scope.neurons, desc=title, unit="neuron") as bar:
        scores = trials.scored(
            trial, value_logits, scope.layers, at_once, threads, report=bar.update
        )
    rows = scores.unique(["layer", "neuron"], keep="first", maintain_order=True).head(best)
    tests = []
    for layer, neuron in rows.select("layer", "neuron").iter_rows():
        [(_, *maps)] = trial.grid.neurons(layer, value_logits, range(neuron, neuron + 1))
        tests.append(NeuronTest(trial, *maps))
    trials.run_tests(trial, tests, budget, settings, threads)
    results = [test.result(side) for test, side in zip(tests, rows["side"], strict=True)]
    rows = rows.hstack(pl.DataFrame(results))
    q_values = trials.q_values(rows["p_value"].to_numpy(), scope.neurons)
    return rows.with_columns(q_value=q_values), tests


def _labels(scope: Scope, best: pl.DataFrame) -> pl.Series:
    """Return each neuron's first label, null if it has none."""
    name = scope.subject.name
    if not scope.subject.path("heuristics/labels.parquet").exists():
        makes = f"dvc repro stages/heuristics/dvc.yaml:labels@{name}"
        remark(f"{name} has no labels yet; `{makes}` makes them")
        return pl.Series("label", [None] * len(best), pl.String)
    labels = scope.subject.table("heuristics/labels.parquet").filter(rank=1)
    keys = ["operator", "layer", "neuron"]
    names = labels.select(*keys, label="heuristic")
    return best.join(names, on=keys, how="left", maintain_order="left")["label"]


def _remarks(trial: Trial, scope: Scope, best: pl.DataFrame, budget: Budget) -> Iterable[str]:
    """Yield what the table is about, and what it shows, in sentences."""
    heuristic, level = trial.heuristic, budget.level
    cells, k = len(trial.grid.cells), int(trial.group.sets.k[0])
    about = "contributions to the answer's logit" if trial.of_result else "activations"
    yield (
        f"{heuristic.predicate} holds on {k:,} of {cells:,} cells of {scope.operator}; "
        f"scored on {about}"
    )
    if heuristic.kind == "custom":
        yield "it is not in the catalogue; stages/heuristics/README.md tells how to add it"
    else:
        yield f"the catalogue calls these cells: {heuristic.name}"
    yield (
        f"scored: {scope.neurons:,} neurons of {scope.subject.name}, layers "
        f"{', '.join(map(str, scope.layers))}, both sides; q_value corrects for "
        f"{scope.neurons:,} tests, one for each neuron"
    )
    passing = best.filter(pl.col("q_value") <= level).height
    yield f"{passing} of the {len(best)} neurons shown have a q_value of at most {level:g}"
    undecided = best.filter(
        pl.col("q_value") > level, pl.col("p_value") * (pl.col("draws") + 1) < 1.5
    )
    if len(undecided):
        draws = 2 * budget.needed(len(undecided)) * len(best)
        yield (
            f"{len(undecided)} of them have the smallest p_value that their draws allow; "
            f"--draws {draws} may give them a smaller q_value"
        )


def _draw(
    trial: Trial, scope: Scope, best: pl.DataFrame, tests: list[NeuronTest], file: Path
) -> None:
    """Draw the neurons' maps into a PNG file."""
    from stages.lib.drawing import drawing, maps  # only here: matplotlib takes half a second

    examples = []
    for row, test in zip(best.rows(named=True), tests, strict=True):
        grid, neuron = trial.grid, test.neuron
        values = np.full(grid.shape, np.nan, np.float32)
        values.ravel()[grid.cells] = trial.map(neuron.activations, neuron.logits)
        members = np.zeros(grid.shape, bool)
        members.ravel()[grid.cells] = trial.members
        lowest = " (lowest values)" if row["side"] == "bottom" else ""
        text = (
            f"layer {row['layer']}, neuron {row['neuron']}{lowest}\n"
            f"score {row['score']:.2f}, chance-corrected {row['chance_corrected']:.2f}, "
            f"q-value {row['q_value']:.2g}\nlabel: {row['label'] or 'none'}"
        )
        examples.append(maps.Example(text, values, members))
    about = "contributions" if trial.of_result else "activations"
    predicate = shorten(trial.heuristic.predicate, TITLE)
    title = f"{scope.subject.name}, {scope.operator}: {about} that fit best: {predicate}"
    pairs = [examples[first : first + 2] for first in range(0, len(examples), 2)]
    figure = maps.examples(pairs, title, load(Portraits).detail)
    with replacing(file) as partial:
        drawing.FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})


if __name__ == "__main__":
    main()
