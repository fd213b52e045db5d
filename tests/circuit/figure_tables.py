"""Make tables for figures, and read what their axes show."""

import pickle
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.circuit import figures
from stages.lib import dictionary
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Tables
from tests.micro import ROOT, SHIPPED

KINDS = {
    "VARCHAR": pl.String,
    "SMALLINT": pl.Int16,
    "INTEGER": pl.Int32,
    "BIGINT": pl.Int64,
    "DOUBLE": pl.Float64,
    "FLOAT": pl.Float32,
    "BOOLEAN": pl.Boolean,
}
OPERATORS, HEADS, NEURONS, KS = ["add", "subtract"], 2, 12, [2, 4]
SITES = [
    {"layer": 0, "position": "op1"},
    {"layer": 0, "position": "operator"},
    {"layer": 0, "position": "op2"},
    {"layer": 1, "position": "last"},
]
WHY = "the subject answers only 2 prompts correctly"
DOCUMENTED = dictionary.tables(ROOT / "stages")
RNG = np.random.default_rng(0)


def made(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return a table with its documented columns and types.

    A number that a row does not give is random, a text is null.
    """
    schema = {column: KINDS[kind] for column, (kind, _) in DOCUMENTED[name].columns.items()}
    numbers = [column for column, kind in schema.items() if kind in (pl.Float64, pl.Float32)]
    filled = []
    for row in rows:
        random = dict(zip(numbers, RNG.uniform(0.05, 0.95, len(numbers)).tolist(), strict=True))
        filled.append(dict.fromkeys(schema) | random | {"subject": "s"} | row)
    return pl.DataFrame(filled, schema=schema)


def crossed(keys: list[dict[str, Any]], **columns: Iterable) -> list[dict[str, Any]]:
    """Return each key with each combination of the columns' values."""
    combinations = product(keys, *columns.values())
    return [key | dict(zip(columns, values, strict=True)) for key, *values in combinations]


def pairs_found_table(answered: list[str]) -> pl.DataFrame:
    """Return the table pairs_found, with prompts of some operators."""
    rows = crossed([{}], operator=[*OPERATORS, "divide"])
    return made("pairs_found", rows).with_columns(
        problem=pl.when(~pl.col("operator").is_in(answered)).then(pl.lit(WHY))
    )


RANKING_PAIRS = [
    {"ranking_a": "effect", "ranking_b": "effect_plus_std"},
    {"ranking_a": "effect", "ranking_b": "logit_effect"},
    {"ranking_a": "effect_plus_std", "ranking_b": "logit_effect"},
]


def neuron_parts() -> dict[str, list[dict[str, Any]]]:
    """Return rows of one operator, of the tables about neurons."""
    effects = crossed(SITES, method=["exact"], neuron=range(NEURONS))
    for row in effects:
        row["rank"] = row["neuron"] + 1
    return {
        "neuron_effects": effects,
        "attribution_agreement": crossed(SITES, against=["effect", "logit_effect"], k=KS),
        "attribution_recall": crossed(SITES, k=KS),
        "ranking_agreement": [a | b for a, b in product(crossed(SITES, k=KS), RANKING_PAIRS)],
    }


def circuit_parts() -> dict[str, list[dict[str, Any]]]:
    """Return rows of one operator, of the tables about the circuit."""
    heads = crossed([{"component": "head"}], layer=(0, 1), head=range(HEADS))
    mlps = crossed([{"component": "mlp", "head": None}], layer=(0, 1))
    effects = crossed([*mlps, *heads], position=drawing.ROLES)
    for row in effects:
        row["effect"] = RNG.normal() * 1e3
    units = crossed([{}], layer=(0, 1), head=range(HEADS))
    keys = ["bos", *drawing.ROLES]
    ranked = ["effect", "logit_effect", "own_means"]
    first_mlp = [f"first_mlp_{ranking}" for ranking in drawing.RANKINGS]
    sizes = {"circuit": [*drawing.RANKINGS, *first_mlp], "neurons_per_layer": [0, *KS]}
    neuron_circuit = {"experiment": "neuron_circuit", "heads": 1}
    return {
        "component_effects": effects,
        "component_stability": crossed(
            [{}], measure=figures.MEASURES, component=["both", "head", "mlp"]
        ),
        "head_faithfulness": [
            *crossed([{"seed": None}], circuit=ranked, heads=range(3)),
            *crossed([{"circuit": "random"}], heads=range(3), seed=(0, 1)),
        ],
        "smallest_circuits": [{"target": 0.5, "heads": 1}, {"target": 0.9, "heads": None}],
        "circuit_heads": [{"layer": 1, "head": 0}],
        "probes": crossed([{}], layer=(0, 1), position=drawing.ROLES),
        "attention_patterns": crossed(units, query_position=["last"], key_position=keys),
        "cut_faithfulness": crossed([{}], circuit=figures.CUTS),
        "faithfulness": [
            *crossed([{"experiment": "cut"}], circuit=figures.CUTS),
            *crossed([neuron_circuit], **sizes),
            neuron_circuit | {"circuit": "heads"},
        ],
    }


def tables() -> Tables:
    """Return the tables of a model with two layers and two heads that answers no division.

    The second layer is late.
    """
    by_operator = circuit_parts() | neuron_parts()
    for name, rows in by_operator.items():
        by_operator[name] = [{"operator": o} | row for o, row in product(OPERATORS, rows)]
    sites = [*SITES, {"layer": None, "position": "last"}]
    overlaps = crossed(sites, ranking=["effect", "logit_effect"], k=KS)
    for row in overlaps:
        row |= {"operator_a": "add", "operator_b": "subtract"}
    others = {
        "operator_overlaps": overlaps,
        "token_activations": crossed([{"layer": 0}], neuron=range(NEURONS), number=range(5)),
        "late_layers": [{"first_layer": 1, "layers": 2}],
    }
    positions = dict(zip(drawing.ROLES, range(1, 5), strict=True))
    return {name: made(name, rows) for name, rows in (by_operator | others).items()} | {
        "pairs_found": pairs_found_table(OPERATORS),
        "pairs": pl.DataFrame({"operator": OPERATORS, "positions": [positions] * 2}),
    }


def cleared(tables: Tables) -> Tables:
    """Return the same tables without rows."""
    return {name: table.clear() for name, table in tables.items()}


def unanswered(tables: Tables) -> Tables:
    """Return the same tables for a model that answers nothing correctly."""
    late = made("late_layers", [{"first_layer": None, "layers": 2, "accuracy": None}])
    known = {"late_layers": late, "pairs_found": pairs_found_table([])}
    return cleared(tables) | {name: table for name, table in known.items() if name in tables}


def write(folder: Path, tables: Tables, subject: str = "s") -> None:
    for name, table in tables.items():
        path = folder / "data" / subject / DOCUMENTED[name].path.parent.name / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.write_parquet(path)


def written_by(
    draw: Callable[[], object],
    prepare: Callable[[Path], object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> set[str]:
    """Return the files that `draw` writes below reports/, in a project that `prepare` makes.

    Figures and their data are pickled and unpickled, as they are for worker processes. The figures
    are drawn for screens alone, without a layout, which take a third of the time. The micro project
    draws figures for papers, too, and from real data (test_every_declared_figure_is_drawn
    in tests/report), and tests/test_pipeline.py checks that they are always the same.
    """
    write = drawing.write

    def pickled(*arguments: Any, **options: Any) -> None:
        write(*pickle.loads(pickle.dumps(arguments)), **options)

    # reasons why no layer is late read this section
    sections = {"late_layers": SHIPPED["late_layers"]}
    (folder / "params.yaml").write_text(yaml.safe_dump(sections))
    prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(drawing, "write", pickled)
    monkeypatch.setattr(drawing, "settle", lambda figure: figure.set_layout_engine("none"))
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", lambda _, path, **__: Path(path).touch())
    draw()
    return set(map(str, Path("reports").rglob("*.*")))


def pictures(folder: str, names: Iterable[str], front: str = "") -> set[str]:
    """Return the files of these figures below reports/; that of the front is beside the folder."""
    files = set()
    for name in names:
        path = Path("reports", folder, name)
        stem = path.parents[1] / name if name == front else path
        files |= {f"{stem}.png", f"{stem}.svg"}
    return files


def panels(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


def by_operator(figure: Figure, operators: list[str]) -> dict[str, list[Axes]]:
    """Return the panels of each operator, from top to bottom."""
    axes = np.reshape(panels(figure), (-1, len(operators)))
    for axis, operator in zip(axes[0], operators, strict=True):
        assert axis.get_title().split("\n")[0].split(":")[0] == operator
    return dict(zip(operators, axes.T.tolist(), strict=True))


def texts(axis: Axes) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in axis.texts)


def line(axis: Axes, label: str) -> Line2D:
    [drawn] = [line for line in axis.lines if line.get_label() == label]
    return drawn


def majority_is_drawn(axis: Axes, accuracies: pl.Series) -> None:
    """Assert that the accuracy of the most frequent answer is a line, at its mean over rows."""
    assert list(line(axis, drawing.MAJORITY).get_ydata()) == pytest.approx([accuracies.mean()] * 2)


def names_along(axis: Axis) -> list[str]:
    """Return the names along an axis of a heat map, also if only a neighbouring map shows them."""
    shown = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    return [name.replace("\n", ", ") for name in shown]


def image(axis: Axes) -> np.ndarray:
    return np.asarray(axis.images[0].get_array().filled(np.nan))  # type: ignore[union-attr]


def lines_over_size(figure: Figure, table: pl.DataFrame, size: str, prefix: str = "") -> None:
    """Assert that the panels of faithfulness and accuracy show a line for each ranking.

    prefix: what the names of the rankings' circuits start with.
    """
    axes = np.reshape(figure.axes, (2, 3))
    for column, operator in enumerate(OPERATORS):
        for axis, measure in zip(axes[:, column], ["faithfulness", "accuracy"], strict=True):
            for ranking in ("effect", "logit_effect", "random"):
                rows = table.filter(operator=operator, circuit=prefix + ranking)
                mean = rows.group_by(size).agg(pl.mean(measure)).sort(size)
                drawn = line(axis, drawing.RANKING_NAMES[ranking])
                np.testing.assert_array_equal(drawn.get_xdata(), mean[size])
                np.testing.assert_allclose(drawn.get_ydata(), mean[measure])
        majority_is_drawn(
            axes[1, column],
            _of_rankings(table, operator, prefix)["majority_accuracy"],
        )


def _of_rankings(table: pl.DataFrame, operator: str, prefix: str) -> pl.DataFrame:
    names = [prefix + ranking for ranking in drawing.RANKINGS]
    return table.filter(pl.col("circuit").is_in(names), operator=operator)
