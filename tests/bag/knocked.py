"""Make tables for the causal tests, and models whose answers are known."""

from collections.abc import Callable, Iterable
from contextlib import chdir
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml
from polars.testing import assert_frame_equal

from stages.bag import prompt_knockout_interventions
from stages.lib.executor import interventions
from stages.lib.heuristics.names import parse
from stages.lib.sql.database import Database
from tests.lib.test_executor import ROLES, subject
from tests.made import OPERATORS, ask, described, frame
from tests.micro import ROOT, alone

CRITERIA = ("label", "fdr", "threshold")
Units = set[tuple[int, int]]  # (layer, neuron)


class Prompt(NamedTuple):
    operator: str
    pair: int
    op1: int
    op2: int
    result: int


Answer = Callable[
    [Units, Prompt], tuple[float, bool]
]  # (logit above the mean, correct) with these neurons silenced
MEANS: dict[str, Callable[[Prompt], bool]] = {
    "op1 = op2": lambda p: p.op1 == p.op2,
    "op1 mod 2 = 0": lambda p: p.op1 % 2 == 0,
    "op2 in 0..6": lambda p: p.op2 <= 6,
    "result ~ ..1": lambda p: p.result % 10 == 1,
    "result in {3, 7}": lambda p: p.result in (3, 7),
    "own sum": lambda p: p.op1 + p.op2 > 12,
}
SAME, EVEN, LOW, ENDS, SET, OWN = MEANS
EFFECTS = dict(
    zip(product((1, 2), range(48)), np.random.default_rng(0).normal(size=96).tolist(), strict=True)
)  # (layer, neuron) -> effect


def standing(
    rows: Iterable[tuple[str, int, int, str]], *criteria: str, late: int = 0
) -> pl.DataFrame:
    """Return the table heuristic_neurons, the same by each of these criteria.

    rows: (operator, layer, neuron, heuristic); layers from `late` on are late.
    """
    listed = []
    for criterion, (operator, *rest) in product(criteria or CRITERIA, rows):
        listed.append(("s", operator, criterion, *rest))
    names = ["subject", "operator", "criterion", "layer", "neuron", "heuristic"]
    schema = dict.fromkeys(names, pl.String) | {"layer": pl.Int16, "neuron": pl.Int32}
    scores = np.random.default_rng(len(listed)).choice(
        [0.4, 0.5, 0.6, 0.7], len(listed)
    )  # many are equal
    made = pl.DataFrame(listed, schema=schema, orient="row")
    return made.with_columns(
        pl.Series("chance_corrected", scores, pl.Float32), late=pl.col("layer") >= late
    )


def standing_alike(
    heuristics: dict[tuple[int, int], str], *criteria: str, late: int = 0
) -> pl.DataFrame:
    """Return the table heuristic_neurons in which neurons have one heuristic, for all operators.

    heuristics: (layer, neuron) -> its heuristic.
    """
    rows = []
    for operator, (unit, heuristic) in product(OPERATORS, heuristics.items()):
        rows.append((operator, *unit, heuristic))
    return standing(rows, *criteria, late=late)


def catalogue(operators: Iterable[str]) -> pl.DataFrame:
    """Return the table heuristics of these operators.

    It lacks SET, which only its name describes, and has OWN, whose name does not.
    """
    known = [(OWN, "custom", "custom", "op1 + op2 > 12")]
    for heuristic in map(parse, (SAME, EVEN, LOW, ENDS)):
        known.append((heuristic.name, heuristic.kind, heuristic.quantity, heuristic.predicate))
    columns = ["heuristic", "kind", "quantity", "predicate"]
    table = pl.DataFrame(known, schema=columns, orient="row")
    return pl.DataFrame({"operator": list(operators)}).join(table, how="cross")


def documented(path: Path) -> pl.DataFrame:
    """Return a table that a stage wrote, whose columns and types are those of its description."""
    database = Database({"written": [path]})
    columns = described(ROOT / "stages")[path.stem].columns
    assert database.columns("written") == {name: kind for name, (kind, _) in columns.items()}
    return database.sql("from written").pl()


def assert_rows(table: pl.DataFrame, expected: list[dict[str, Any]]) -> None:
    """Assert that a table has the expected rows, in any order, in the columns that they name.

    The first columns are keys, which no two rows share.
    """
    rows = pl.DataFrame(expected, infer_schema_length=None)
    assert_frame_equal(
        table.select(rows.columns),
        rows,
        check_row_order=False,
        check_dtypes=False,
        rel_tol=1e-6,
        abs_tol=1e-9,
    )


def prompts(per_seed: int = 30, seeds: int = 5) -> pl.DataFrame:
    """Return the table pairs in no order.

    Operands are below 12, so that no heuristic holds for all prompts.
    """
    rng = np.random.default_rng(3)
    rows = []
    splits = ("discovery", "evaluation")
    for key in product(OPERATORS, splits, np.repeat(range(seeds), per_seed)):
        a, b = rng.integers(0, 12, 2)
        low, high = min(a, b), max(a, b)
        rows.append((*key, a, b, a + b) if key[0] == "add" else (*key, high, low, high - low))
    names = ["operator", "split", "seed", "op1", "op2", "result"]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    made = frame(subject="s", pair=range(len(rows)), **columns)
    made = made.with_columns(pl.col("op1", "op2", "result").cast(pl.Int32))
    made = made.with_columns(answer_token=pl.col("result") + 3)
    return made.sample(fraction=1, shuffle=True, seed=1)


def listed(pairs: pl.DataFrame, **filters: str) -> list[Prompt]:
    """Return the prompts of a table pairs in order, of an operator or a split."""
    rows = pairs.filter(**filters).sort("pair").select(Prompt._fields).rows()
    return list(map(Prompt._make, rows))


def is_associated(
    pairs: pl.DataFrame, operator: str, holds: Callable[[Prompt], bool]
) -> np.ndarray:
    """Return whether a heuristic holds for each evaluation prompt of an operator, in order."""
    return np.array(list(map(holds, listed(pairs, operator=operator, split="evaluation"))), bool)


def associations(pairs: pl.DataFrame, means: dict[str, Callable[[Prompt], bool]]) -> pl.DataFrame:
    """Return the table prompt_associations, by brute force."""
    rows = []
    for prompt, (name, holds) in product(listed(pairs), means.items()):
        if holds(prompt):
            rows.append(("s", prompt.operator, prompt.pair, name))
    schema = {"subject": pl.String, "operator": pl.String, "pair": pl.Int32, "heuristic": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").sample(fraction=1, shuffle=True, seed=2)


def weights(pairs: pl.DataFrame, replicates: int = 60) -> pl.DataFrame:
    return ask("bootstrap_weights", {"pairs": pairs}, replicates=replicates).sample(
        fraction=1, shuffle=True, seed=0
    )


def drawn(weights: pl.DataFrame, operator: str) -> np.ndarray:
    """Return how often each replicate draws each evaluation prompt of an operator.

    The result is (replicates, prompts).
    """
    return np.array(
        weights.filter(operator=operator, split="evaluation")
        .sort("replicate")["weights"]
        .to_list(),
        float,
    )


def interval(values: np.ndarray, drawn: np.ndarray) -> list[float]:
    """Return the 90 % bootstrap interval of a mean; drawn: (replicates, values)."""
    counts = drawn.sum(1)
    means = (drawn @ values)[counts > 0] / counts[counts > 0]
    return np.quantile(means, [0.05, 0.95]).tolist()


def neuron_effects() -> pl.DataFrame:
    """Return the table neuron_effects, with EFFECTS for exact effects at the last position."""
    rows = []
    kinds = product(OPERATORS, ("exact", "attribution"), ("last", "op1"))
    for kind, (unit, effect) in product(kinds, EFFECTS.items()):
        rows.append((*kind, *unit, effect if kind[1:] == ("exact", "last") else effect**2))
    names = ["operator", "method", "position", "layer", "neuron", "logit_effect"]
    made = frame(subject="s", **dict(zip(names, zip(*rows, strict=True), strict=True)))
    return made.sample(fraction=1, shuffle=True, seed=5)


def prompt_knockouts(
    pairs: pl.DataFrame, members: pl.DataFrame, counts: list[int], seed: int = 0
) -> pl.DataFrame:
    """Return what the stage prompt_knockout_interventions writes."""
    given = {
        "pairs": pairs,
        "heuristic_neurons": members,
        "prompt_associations": associations(pairs, MEANS),
    }
    given["neuron_effects"] = neuron_effects()
    with TemporaryDirectory() as folder, chdir(folder):
        for name, table in given.items():
            chapter = described(ROOT / "stages")[name].path.parent.name
            path = Path("data/s", chapter, f"{name}.parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            table.write_parquet(path)
        settings = alone("s") | {
            "prompt_knockouts": {"neurons_per_layer": counts, "prompt_knockout_seed": seed}
        }
        Path("params.yaml").write_text(yaml.safe_dump(settings))
        prompt_knockout_interventions.main("s")
        return documented(Path("data/s/bag/prompt_knockout_interventions.parquet"))


def in_layer(units: Iterable[tuple[int, int]], layer: int) -> Units:
    return {unit for unit in units if unit[0] == layer}


def units_of(patches: pl.DataFrame) -> Units:
    """Return what the rows of one intervention ablate."""
    named = patches.filter(component="neuron").explode("units").select("layer", "units").rows()
    assert len(named) == len(set(named))
    return set(named)


def ablated(table: pl.DataFrame, *keys: str) -> dict[tuple, Units]:
    """Return what interventions ablate, by these keys; zero and mean ablate the same neurons."""
    by_replacement: dict[str, dict[tuple, Units]] = {"zero": {}, "mean": {}}
    rows = table.filter(pl.col("arm") != "none")
    for (replacement, _, *key), patches in rows.group_by("replacement", "intervention", *keys):
        units = units_of(patches)
        assert set(patches["neurons"]) == {len(units)}
        by_replacement[replacement][tuple(key)] = units
    assert by_replacement["zero"] == by_replacement["mean"]
    return by_replacement["zero"]


def simulated(
    table: pl.DataFrame, experiment: str, pairs: pl.DataFrame, answer: Answer
) -> pl.DataFrame:
    """Return the table runs of a model under a table of interventions."""
    by_operator = {
        operator: listed(pairs, operator=operator, split="evaluation") for operator in OPERATORS
    }
    rows = []
    for (number, operator), patches in table.group_by(
        "intervention", "operator", maintain_order=True
    ):
        units, only = units_of(patches), patches["pair"][0] if "pair" in patches.columns else None
        for prompt in by_operator[operator]:
            if only in (None, prompt.pair):
                (logit, correct), mean = answer(units, prompt), (number + prompt.pair) % 7
                other = mean - prompt.pair % 3
                rows.append((number, prompt.pair, mean + logit, other, mean, mean + 40, correct))
    names = ["answer_logit", "counterfactual_logit", "mean_logit", "max_logit"]
    logits = dict.fromkeys(names, pl.Float32)
    made = pl.DataFrame(
        rows,
        schema={"intervention": pl.Int32, "pair": pl.Int32} | logits | {"correct": pl.Boolean},
        orient="row",
    )
    made = made.with_columns(subject=pl.lit("s"))
    others = made.with_columns(correct=~pl.col("correct"), experiment=pl.lit("another"))
    return pl.concat([made.with_columns(experiment=pl.lit(experiment)), others]).sample(
        fraction=1, shuffle=True, seed=4
    )


def answers(
    table: pl.DataFrame, experiment: str, pairs: pl.DataFrame, answer: Answer
) -> pl.DataFrame:
    """Return the interventions of a table, each with correct and logit of its prompts in order.

    logit: the answer's logit above the mean.
    """
    runs = simulated(table, experiment, pairs, answer).filter(experiment=experiment)
    logit = pl.col("answer_logit").cast(float) - pl.col("mean_logit")
    numbers = runs.select("intervention", "pair", "correct", logit=logit)
    once = table.rename({"replacement": "ablation"}).unique("intervention")
    return once.drop("pair", strict=False).join(numbers, on="intervention").sort("pair")


def at_random(seed: int) -> Answer:
    """Return random answers."""
    rng = np.random.default_rng(seed)
    return lambda *_: (float(rng.normal()), bool(rng.random() < 0.6))


def taken(table: pl.DataFrame) -> list[interventions.Intervention]:
    """Return what the executor reads from a table of interventions, on 3 layers of 48 neurons."""
    read = interventions.read(
        table.sample(fraction=1, shuffle=True, seed=2), subject("llama").architecture, ROLES
    )
    for number, intervention in enumerate(read):
        assert (intervention.number, intervention.split) == (number, "evaluation")
        for patch in intervention.patches:
            assert (patch.component, patch.position) == ("neuron", "last")
    return read


def replacements(read: list[interventions.Intervention]) -> set[str]:
    """Return all replacements of the interventions' patches."""
    return {patch.replacement for intervention in read for patch in intervention.patches}


def clean_runs(read: list[interventions.Intervention]) -> list[str]:
    """Return the operators of the interventions without patches."""
    return [intervention.operator for intervention in read if not intervention.patches]


def written(micro: Path, name: str, table: str) -> pl.DataFrame:
    [path] = (micro / "data" / name).rglob(f"{table}.parquet")  # whichever chapter's
    return pl.read_parquet(path)


def ran(micro: Path, name: str, experiment: str) -> pl.DataFrame:
    """Return the runs of an experiment; each intervention has run on its own prompts alone."""
    runs, table = (
        written(micro, name, f"runs/{experiment}"),
        written(micro, name, f"{experiment}_interventions"),
    )
    evaluated = (
        written(micro, name, "pairs").filter(split="evaluation").select("operator", meant="pair")
    )
    once = table.select(
        "intervention",
        "operator",
        "pair" if "pair" in table.columns else pl.lit(None).alias("pair"),
    ).unique()
    meant = once.join(evaluated, on="operator").filter(
        pl.col("pair").is_null() | (pl.col("pair") == pl.col("meant"))
    )
    assert sorted(runs.select("intervention", "pair").rows()) == sorted(
        meant.select("intervention", "meant").rows()
    )
    return runs
