"""Knock-outs of heuristics: what is silenced, which prompts are meant, and that a planted heuristic's own prompts fail alone."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages import prompt_associations
from stages.lib.dictionary import tables
from stages.lib.heuristics import parse
from stages.lib.model import interventions
from stages.lib.sql import Database
from tests.made import OPERATORS, ask, frame
from tests.micro import ROOT
from tests.test_executor import ROLES, subject

CELL = ["operator", "pair", "op1", "op2", "result"]
SETTINGS = {"fewest_neurons": 3, "control_draws": 4, "knockout_seed": 0}
MEANS: dict[str, Callable[[int, int, int], bool]] = {
    "op1 = op2": lambda a, b, r: a == b, "op1 mod 2 = 0": lambda a, b, r: a % 2 == 0, "op2 in 0..6": lambda a, b, r: b <= 6,
    "result ~ ..1": lambda a, b, r: r % 10 == 1, "result in {3, 7}": lambda a, b, r: r in (3, 7), "own sum": lambda a, b, r: a + b > 12,
}  # fmt: skip
SAME, EVEN, LOW, ENDS, SET, OWN = MEANS


def labels(rows: list[tuple[str, int, int, str]]) -> pl.DataFrame:
    """Labels (operator, layer, neuron, heuristic), each on the top side; the other columns of the table play no part."""
    schema = {"operator": pl.String, "layer": pl.Int16, "neuron": pl.Int32, "heuristic": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(subject=pl.lit("s"), side=pl.lit("top"))


@pytest.fixture(scope="module")
def labelled() -> pl.DataFrame:
    """In layer 0 nearly all neurons stand for SAME; two neurons stand for OWN, and those of LOW do by either side."""
    rng = np.random.default_rng(0)
    rows = {(o, layer, 47, OWN) for o in OPERATORS for layer in (1, 2)}
    for o in OPERATORS:
        rows |= {(o, 0, n, SAME if n < 20 else LOW) for n in range(24)}
        rows |= {(o, layer, n, h) for layer in (1, 2) for n in range(9, 40) for h in rng.choice([EVEN, LOW, ENDS, SET], rng.integers(1, 3))}
    table = labels(sorted(rows))
    twice = table.filter(pl.col("heuristic") == LOW).with_columns(side=pl.lit("bottom"))
    return pl.concat([table, twice]).sample(fraction=1, shuffle=True, seed=1)


@pytest.fixture(scope="module")
def knockouts(labelled: pl.DataFrame) -> pl.DataFrame:
    return ask("knockout_interventions", {"labels": labelled}, **SETTINGS)


def silenced(patches: pl.DataFrame) -> set[tuple[int, int]]:
    return set(patches.explode("units").select("layer", "units").rows())


def test_all_neurons_of_a_heuristic_are_silenced_and_as_many_others_in_each_layer(labelled: pl.DataFrame, knockouts: pl.DataFrame):
    arms, chosen = Counter(), {}
    keys = ["intervention", "operator", "heuristic", "replacement", "arm", "draw", "neurons"]
    for (_, operator, heuristic, replacement, arm, draw, neurons), patches in knockouts.group_by(keys, maintain_order=True):
        units = silenced(patches) if arm != "none" else set()
        arms[operator, heuristic, replacement, arm] += 1
        assert len(units) == neurons
        here = labelled.filter(operator=operator)
        mine, known = (set(table.select("layer", "neuron").rows()) for table in (here.filter(heuristic=heuristic or ""), here))
        if arm == "control":
            assert units <= known - mine
            assert Counter(layer for layer, _ in units) == Counter(layer for layer, _ in mine)
            chosen.setdefault((operator, heuristic, draw), []).append(units)
        else:
            assert (units, draw) == (mine, None)
    expected = {(o, h, r, "heuristic"): 1 for o in OPERATORS for h in (SAME, EVEN, LOW, ENDS, SET) for r in ("zero", "mean")}
    expected |= {(o, h, r, "control"): 4 for o, h, r, _ in expected if h != SAME} | {(o, None, None, "none"): 1 for o in OPERATORS}
    assert arms == expected  # OWN has too few neurons; beside those of SAME layer 0 has too few for a control
    assert len({frozenset(zero) for zero, mean in chosen.values() if zero == mean}) == len(chosen)


def test_the_executor_takes_them(knockouts: pl.DataFrame):
    found = interventions.read(knockouts.sample(fraction=1, shuffle=True, seed=2), subject("llama").architecture, ROLES)
    assert [one.number for one in found] == list(range(len(found)))
    assert {(one.operator, one.split) for one in found if not one.patches} == {(operator, "evaluation") for operator in OPERATORS}
    patches = {(p.component, p.position, p.replacement) for one in found for p in one.patches}
    assert patches == {("neuron", "last", "zero"), ("neuron", "last", "mean")}


def test_controls_are_drawn_evenly_and_by_seed():
    given = {"labels": labels([("add", 1, n, EVEN if n < 3 else LOW) for n in range(12)])}
    draws = [ask("knockout_interventions", given, **SETTINGS | {"control_draws": 600, "knockout_seed": seed}) for seed in (0, 1)]
    several = [table.filter(arm="control", replacement="zero", heuristic=EVEN).sort("draw")["units"].to_list() for table in draws]
    assert several[0] != several[1]
    counts = Counter(n for units in several[0] for n in units)
    assert sorted(counts) == list(range(3, 12))
    assert max(abs(count - 200) for count in counts.values()) < 4 * (600 * 1 / 3 * 2 / 3) ** 0.5


@pytest.fixture(scope="module")
def prompts() -> pl.DataFrame:
    rng = np.random.default_rng(3)
    drawn = [(o, split, *rng.integers(0, 12, 2)) for o in OPERATORS for split in ("discovery", "evaluation") for _ in range(150)]
    rows = [(o, split, a, b, a + b) if o == "add" else (o, split, max(a, b), min(a, b), abs(a - b)) for o, split, a, b in drawn]
    columns = dict(zip(["operator", "split", "op1", "op2", "result"], zip(*rows, strict=True), strict=True))
    made = frame(subject="s", pair=rng.permutation(len(rows)), **columns)
    return made.with_columns(pl.col("op1", "op2").cast(pl.Int16), pl.col("result").cast(pl.Int32))


def associated(folder: Path, monkeypatch: pytest.MonkeyPatch, pairs: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    """The real stage's answer; its catalogue lacks SET, which only its name describes, and holds OWN, which its name does not."""
    known = [(h.name, h.kind, h.quantity, h.predicate) for h in map(parse, (SAME, EVEN, LOW, ENDS))]
    rows = [(operator, *one) for operator in OPERATORS for one in [*known, (OWN, "custom", "custom", "op1 + op2 > 12")]]
    (folder / "data/s").mkdir(parents=True)
    catalogue = pl.DataFrame(rows, schema=["operator", "heuristic", "kind", "quantity", "predicate"], orient="row")
    for name, table in {"heuristics": catalogue, "s/pairs": pairs, "s/labels": labels}.items():
        table.write_parquet(folder / f"data/{name}.parquet")
    monkeypatch.chdir(folder)
    prompt_associations.main("s")
    documented = {name: kind for name, (kind, _) in tables(ROOT / "stages")["prompt_associations"].columns.items()}
    database = Database({"written": [folder / "data/s/prompt_associations.parquet"]})
    assert database.columns("written") == documented
    return database.sql("from written").pl()


def test_a_prompt_is_associated_with_what_its_cell_satisfies(prompts: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    of = {"add": [EVEN, LOW, ENDS, SET, OWN], "subtract": [SAME, SET]}
    table = associated(tmp_path, monkeypatch, prompts, labels([(o, 1, n, h) for o, names in of.items() for n in (1, 2) for h in names]))
    expected = [("s", o, pair, h) for o, pair, *cell in prompts.select(CELL).iter_rows() for h in of[o] if MEANS[h](*cell)]
    assert table.rows() == sorted(expected)
    assert {(o, h) for _, o, _, h in expected} == {(o, h) for o, names in of.items() for h in names}


def said(knockouts: pl.DataFrame, prompts: pl.DataFrame, answer: Callable[[set, str, tuple], tuple[float, bool]]) -> pl.DataFrame:
    """The table `runs`, of a subject that answers (logit above the mean, correct) to (neurons silenced, operator, cell)."""
    rows = []
    for (number, operator, arm), patches in knockouts.group_by("intervention", "operator", "arm", maintain_order=True):
        units = silenced(patches) if arm != "none" else set()
        for _, pair, *cell in prompts.filter(operator=operator, split="evaluation").select(CELL).iter_rows():
            (logit, correct), mean = answer(units, operator, tuple(cell)), (number + pair) % 7
            rows.append((number, pair, mean + logit, mean, correct))
    schema = {"intervention": pl.Int32, "pair": pl.Int32, "answer_logit": pl.Float32, "mean_logit": pl.Float32, "correct": pl.Boolean}
    made = pl.DataFrame(rows, schema=schema, orient="row").sample(fraction=1, shuffle=True, seed=4)
    other = made.with_columns(correct=~pl.col("correct"), experiment=pl.lit("neuron"))
    return pl.concat([made.with_columns(experiment=pl.lit("knockout")), other])


def concluded(knockouts: pl.DataFrame, runs: pl.DataFrame, associations: pl.DataFrame) -> pl.DataFrame:
    return ask("knockouts_by_heuristic", {"knockout_interventions": knockouts, "runs": runs, "prompt_associations": associations})


def test_a_planted_heuristic_breaks_its_own_prompts_alone(prompts: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A subject that fails where all neurons of a heuristic are gone that the prompt satisfies; each neuron votes with one logit."""
    of = {h: {(layer, n + 4 * i) for layer in (1, 2) for n in range(4)} for i, h in enumerate([EVEN, LOW, ENDS, SET, OWN])}
    planted = labels([(o, *unit, h) for o in OPERATORS for h, units in of.items() for unit in sorted(units)])

    def answer(units: set, operator: str, cell: tuple) -> tuple[float, bool]:
        hit = [len(units & mine) for heuristic, mine in of.items() if MEANS[heuristic](*cell)]
        return 30.0 - sum(hit), max(hit, default=0) < 8

    knockouts = ask("knockout_interventions", {"labels": planted}, **SETTINGS)
    table = concluded(knockouts, said(knockouts, prompts, answer), associated(tmp_path, monkeypatch, prompts, planted))
    assert table.height == len(OPERATORS) * len(of) * 2 * 2
    for row in table.iter_rows(named=True):
        cells = prompts.filter(split="evaluation", operator=row["operator"]).select(CELL[2:]).rows()
        meant = sum(MEANS[row["heuristic"]](*cell) for cell in cells)
        assert (row["prompts_associated"], row["prompts_other"], row["neurons"]) == (meant, len(cells) - meant, 8)
        assert row["accuracy_associated_before"] == row["accuracy_other_before"] == 1
        measured = [row[name] for name in ("accuracy_associated", "accuracy_other", "logit_change_associated", "logit_change_other")]
        if row["arm"] == "heuristic":
            assert measured == [0, 1, -8, 0]
        else:
            assert measured[:2] == [1, 1]
            assert -8 < measured[2] < 0 > measured[3]


def test_the_means_are_those_of_brute_force(labelled: pl.DataFrame, knockouts: pl.DataFrame, prompts: pl.DataFrame):
    rng = np.random.default_rng(5)
    runs = said(knockouts, prompts, lambda *_: (float(rng.normal()), bool(rng.random() < 0.6)))
    about = [EVEN, LOW, ENDS, SET]
    rows = {("s", o, pair, h) for o, pair, *cell in prompts.select(CELL).iter_rows() for h in about if MEANS[h](*cell)}
    associations = frame(**dict(zip(["subject", "operator", "pair", "heuristic"], zip(*rows, strict=True), strict=True)))
    table = concluded(knockouts, runs, associations)
    said_here = runs.filter(experiment="knockout").with_columns(logit=pl.col("answer_logit").cast(float) - pl.col("mean_logit"))
    of = knockouts.select("intervention", "operator", "heuristic", "replacement", "arm").unique()
    clean = of.filter(arm="none").join(said_here, on="intervention").select("pair", before="correct", logit_before="logit")
    joined = of.filter(pl.col("arm") != "none").join(said_here, on="intervention").join(clean, on="pair")
    for row in table.iter_rows(named=True):
        here = joined.filter(operator=row["operator"], heuristic=row["heuristic"], replacement=row["ablation"], arm=row["arm"])
        mask = pl.Series([("s", row["operator"], pair, row["heuristic"]) in rows for pair in here["pair"]], dtype=pl.Boolean)
        for name, part in (("associated", here.filter(mask)), ("other", here.filter(~mask))):
            assert row[f"prompts_{name}"] == part["pair"].n_unique()
            expected = part.select("correct", "before", pl.col("logit") - pl.col("logit_before")).mean().row(0)
            measured = (row[f"accuracy_{name}"], row[f"accuracy_{name}_before"], row[f"logit_change_{name}"])
            assert measured == pytest.approx(expected) if len(part) else measured == expected == (None,) * 3
    assert set(table.filter(heuristic=SAME)["accuracy_associated"]) == {None}  # no prompt is said to satisfy it
    assert table.height == len(OPERATORS) * 2 * (len(about) * 2 + 1)


def test_without_labels_all_is_empty(prompts: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    knockouts = ask("knockout_interventions", {"labels": labels([])}, **SETTINGS)
    associations = associated(tmp_path, monkeypatch, prompts, labels([]))
    runs = said(knockouts, prompts, lambda *_: (0.0, True))
    assert [len(t) for t in (knockouts, associations, concluded(knockouts, runs, associations))] == [0, 0, 0]
