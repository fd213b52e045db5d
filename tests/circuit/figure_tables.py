"""Made tables for the figures, and what to read off their axes."""

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.circuit import figures
from stages.lib import dictionary
from stages.lib.drawing import drawing
from stages.lib.drawing.drawing import Tables
from tests.micro import ROOT

KINDS = {
    "VARCHAR": pl.String, "SMALLINT": pl.Int16, "INTEGER": pl.Int32, "BIGINT": pl.Int64, "DOUBLE": pl.Float64, "FLOAT": pl.Float32,
    "BOOLEAN": pl.Boolean,
}  # fmt: skip
OPERATORS, HEADS, NEURONS, KS = ["add", "subtract"], 2, 12, [2, 4]
SITES = [(0, "op1"), (0, "operator"), (0, "op2"), (1, "last")]
WHY = "the subject answers only 2 prompts correctly"
DOCUMENTED = dictionary.tables(ROOT / "stages")
RNG = np.random.default_rng(0)


def made(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A table with its documented columns and types; a number that a row does not give is random, a text is null."""
    schema = {column: KINDS[kind] for column, (kind, _) in DOCUMENTED[name].columns.items()}
    numbers = [column for column, kind in schema.items() if kind in (pl.Float64, pl.Float32)]
    filled = [
        dict.fromkeys(schema)
        | {n: float(RNG.uniform(0.05, 0.95)) for n in numbers}
        | {"subject": "s"}
        | row
        for row in rows
    ]
    return pl.DataFrame(filled, schema=schema)


def found(answered: list[str]) -> pl.DataFrame:
    return made(
        "pairs_found",
        [
            {"operator": o, "problem": None if o in answered else WHY}
            for o in [*OPERATORS, "divide"]
        ],
    )


def neuron_parts() -> dict[str, list[dict[str, Any]]]:
    """Rows of one operator, of the tables about neurons."""
    return {
        "neuron_effects": [
            {"method": "exact", "layer": layer, "position": p, "neuron": n, "rank": n + 1} for layer, p in SITES for n in range(NEURONS)
        ],
        "attribution_agreement": [
            {"layer": layer, "position": p, "against": a, "k": k} for layer, p in SITES for a in ("effect", "logit_effect") for k in KS
        ],
        "attribution_recall": [{"layer": layer, "position": p, "k": k} for layer, p in SITES for k in KS],
        "ranking_agreement": [
            {"layer": layer, "position": p, "ranking_a": a, "ranking_b": b, "k": k} for layer, p in SITES for k in KS
            for a, b in [("effect", "effect_plus_std"), ("effect", "logit_effect"), ("effect_plus_std", "logit_effect")]
        ],
    }  # fmt: skip


def tables() -> Tables:
    """A subject of two layers and two heads, the second layer late, that answers no division."""
    units = [(layer, head) for layer in (0, 1) for head in (None, *range(HEADS))]
    sized: list[dict] = [
        {"circuit": c, "heads": n, "seed": None}
        for c in ("effect", "logit_effect", "own_means")
        for n in range(3)
    ]
    sized += [{"circuit": "random", "heads": n, "seed": seed} for n in range(3) for seed in (0, 1)]
    top = [
        {"circuit": p + c, "neurons_per_layer": n}
        for p in ("", "first_mlp_")
        for c in drawing.RANKINGS
        for n in (0, *KS)
    ]
    cut = [{"circuit": c} for c in figures.CUTS]
    parts = {
        "component_effects": [
            {"component": "mlp" if head is None else "head", "layer": layer, "head": head, "position": p, "effect": RNG.normal() * 1e3}
            for layer, head in units for p in drawing.ROLES
        ],
        "component_stability": [{"measure": m, "component": c} for m in figures.MEASURES for c in ("both", "head", "mlp")],
        "head_faithfulness": sized,
        "smallest_circuits": [{"target": 0.5, "heads": 1}, {"target": 0.9, "heads": None}],
        "circuit_heads": [{"layer": 1, "head": 0}],
        "probes": [{"layer": layer, "position": p} for layer in (0, 1) for p in drawing.ROLES],
        "attention_patterns": [
            {"layer": layer, "head": head, "query_position": "last", "key_position": key}
            for layer, head in units if head is not None for key in ("bos", *drawing.ROLES)
        ],
        "cut_faithfulness": cut,
        "faithfulness": [
            *({"experiment": "cut"} | row for row in cut),
            *({"experiment": "neuron_circuit", "heads": 1} | row for row in [*top, {"circuit": "heads"}]),
        ],
        **neuron_parts(),
    }  # fmt: skip
    overlaps = [
        {"ranking": r, "operator_a": "add", "operator_b": "subtract", "layer": layer, "position": p, "k": k}
        for r in ("effect", "logit_effect") for layer, p in [*SITES, (None, "last")] for k in KS
    ]  # fmt: skip
    return {
        name: made(name, [{"operator": o} | row for o in OPERATORS for row in rows])
        for name, rows in parts.items()
    } | {
        "operator_overlaps": made("operator_overlaps", overlaps),
        "token_activations": made(
            "token_activations",
            [{"layer": 0, "neuron": n, "number": i} for n in range(NEURONS) for i in range(5)],
        ),
        "late_layers": made("late_layers", [{"first_layer": 1, "layers": 2}]),
        "pairs_found": found(OPERATORS),
        "pairs": pl.DataFrame(
            {
                "operator": OPERATORS,
                "positions": [{role: n for n, role in enumerate(drawing.ROLES, 1)}] * 2,
            }
        ),
    }


def cleared(tables: Tables) -> Tables:
    """The same tables without rows."""
    return {name: table.clear() for name, table in tables.items()}


def unanswered(tables: Tables) -> Tables:
    """The same tables of a subject that answers nothing."""
    late = made("late_layers", [{"first_layer": None, "layers": 2, "accuracy": None}])
    known = {"late_layers": late, "pairs_found": found([])}
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
    """The files that `draw` writes below reports/, in a project that `prepare` makes, from what reaches worker processes: figures and what
    they are drawn from, pickled and unpickled. (The micro project draws them from data: test_every_figure_that_is_declared_is_drawn in
    tests/report; every time the same: tests/test_pipeline.py.)"""
    write = drawing.write

    def handed_on(*asked: Any, **more: Any) -> None:
        write(*pickle.loads(pickle.dumps(asked)), **more)

    prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(drawing, "write", handed_on)
    draw()
    return {str(path) for path in Path("reports").rglob("*.*")}


def pictures(folder: str, names: Iterable[str], front: str = "") -> set[str]:
    """The files of these figures below reports/, that of the front beside the folder."""
    places = [
        f"reports/{folder.rpartition('/')[0] if name == front else folder}/{name}" for name in names
    ]
    return {f"{place}.{kind}" for place in places for kind in ("png", "svg")}


def panels(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


def by_operator(figure: Figure, operators: list[str]) -> dict[str, list[Axes]]:
    """The panels of each operator, from top to bottom."""
    axes = np.reshape(panels(figure), (-1, len(operators)))
    assert all(
        axis.get_title().startswith(operator)
        for axis, operator in zip(axes[0], operators, strict=True)
    )
    return dict(zip(operators, axes.T.tolist(), strict=True))


def texts(axis: Axes) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in axis.texts)


def line(axis: Axes, label: str) -> Line2D:
    [found] = [line for line in axis.lines if line.get_label() == label]
    return found


def majority_is_drawn(axis: Axes, accuracies: pl.Series) -> None:
    """Assert that the accuracy of the most frequent answer is a line, at its mean over rows."""
    assert list(line(axis, drawing.MAJORITY).get_ydata()) == pytest.approx([accuracies.mean()] * 2)


def image(axis: Axes) -> np.ndarray:
    return np.asarray(axis.images[0].get_array().filled(np.nan))  # type: ignore[union-attr]


def lines_over_size(figure: Figure, table: pl.DataFrame, size: str, prefix: str = "") -> None:
    """Asserts that the panels of faithfulness and of accuracy show a line for each ranking, whose circuits are named `prefix` + ranking."""
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
