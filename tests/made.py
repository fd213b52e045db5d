"""Build small tables for the queries, and run a stage's real query on them."""

from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from stages.lib.sql.stage import answer as stage_answer
from tests.micro import ROOT

OPERATORS, LAYERS, NEURONS, HEADS, FIRST = ["add", "subtract"], 3, 6, 2, 1
SITES = [
    *product([0], ("op1", "operator", "op2")),
    *product(range(FIRST, LAYERS), ["last"]),
]
KS = [1, 3, 6]
CHOICE = ("architecture", "late_layers", "pairs", "neuron_attributions")  # for neuron_interventions
SETTINGS: dict[str, Any] = {  # defaults of a query's parameters
    "subject": "s",
    "pairs_per_split": 6,
    "seeds": [0, 7, 9],
    "counterfactual": "any_operator",
    "replicates": 300,
    "confidence": 0.9,
    "resampling_seed": 0,
    "top_heads": 2,
    "head_counts": [0, 1, 2, 4, 99],
    "random_circuits": 3,
    "random_head_circuits": 3,
    "targets": [0.5, 0.9],
    "ranking": "logit_effect",
    "target": 0.9,
    "neuron_replicates": 30,
    "patched_neurons": 0,
    "sampled_neurons": 2,
    "ks": KS,
    "operator_ks": KS,
    "normal": 1.96,
}
SHORT = ["layer", "head", "layers", "heads", "head_width", "first_layer"]
LONG = ["pair", "answer_token", "seed", "neuron", "intervention", "width", "neurons", "vocabulary"]
TYPES = dict.fromkeys(SHORT, pl.Int16) | dict.fromkeys(LONG, pl.Int32)
NL = (pl.col("answer_logit") - pl.col("mean_logit")) / (
    pl.col("max_logit") - pl.col("mean_logit")
)  # Eq. 2, of `runs`
PROBABILITIES = ("answer_probability", "counterfactual_probability")
LOGITS = ("answer_logit", "counterfactual_logit")
Tables = dict[str, pl.DataFrame]
described = cache(tables)  # no test changes the project's own files
_asked_twice: set[str] = set()  # stages, in this process


def frame(**columns: Any) -> pl.DataFrame:
    """Return a table whose numbers have the types that they have in the project."""
    table = pl.DataFrame(columns, strict=False)
    return table.cast({name: TYPES[name] for name in table.columns if name in TYPES})


def ask(stage: str, given: Tables, **parameters: Any) -> pl.DataFrame:
    """Run a stage's query on these tables, and check the types of its columns.

    The first time, run it twice, and check that both answers are equal.
    """
    table = described(ROOT / "stages")[stage]
    query = table.path.read_text()
    with TemporaryDirectory() as folder:
        files = {}
        for name, rows in given.items():
            files[name] = [Path(folder) / f"{name}.parquet"]
            rows.write_parquet(files[name][0])
        database = Database(files, threads=1)
        named = database.connection.extract_statements(query)[0].named_parameters
        values = {name: SETTINGS[name] for name in named & SETTINGS.keys()} | parameters
        known = {name: values[name] for name in named if name in values}
        operator = {"operator": "add"} if "operator" in named else {}
        relation = database.sql(query, **known, **operator)
        types = zip(relation.columns, map(str, relation.types), strict=True)
        assert list(types) == [(name, kind) for name, (kind, _) in table.columns.items()]
        answer = stage_answer(database, query, values).collect()
        if stage not in _asked_twice:
            _asked_twice.add(stage)
            again = stage_answer(Database(files, threads=1), query, values)
            assert again.collect().equals(answer)
    return answer


def model() -> Tables:
    """Return tables of three layers, the last two of them late, two operators, and their pairs."""
    weights = ask("bootstrap_weights", {"pairs": pairs()}, replicates=40)
    return {
        "architecture": architecture(),
        "late_layers": late_layers(FIRST),
        "pairs": pairs(),
        "bootstrap_weights": weights.sample(fraction=1, shuffle=True, seed=0),
    }


def architecture() -> pl.DataFrame:
    """Return the table of this name."""
    sizes = {"layers": LAYERS, "width": 12, "neurons": NEURONS, "heads": HEADS}
    return frame(subject="s", **sizes, head_width=4, vocabulary=20)


def late_layers(first: int | None) -> pl.DataFrame:
    """Return the table of this name."""
    return frame(subject="s", first_layer=[first], layers=LAYERS)


def pairs(per_seed: int = 4, seeds: int = 2) -> pl.DataFrame:
    """Return the columns of `pairs` that the measuring queries read."""
    splits = ("discovery", "evaluation")
    rows = list(product(OPERATORS, splits, range(seeds), range(per_seed)))
    operators, splits, drawn, _ = zip(*rows, strict=True)
    answers = np.random.default_rng(2).integers(3, 7, len(rows))
    columns = {"operator": operators, "split": splits, "seed": drawn, "answer_token": answers}
    return frame(subject="s", pair=range(len(rows)), **columns)


def only(given: Tables, *names: str) -> Tables:
    """Return the tables of these names."""
    return {name: given[name] for name in names}


def runs(
    interventions: pl.DataFrame, pairs: pl.DataFrame, experiment: str = "neurons"
) -> pl.DataFrame:
    """Return random answers of every intervention to its prompts."""
    rng = np.random.default_rng(len(experiment))
    once = interventions.select("intervention", "operator", "split").unique(maintain_order=True)
    rows = once.join(pairs.select("pair", "split", on="operator"), on="split")
    rows = rows.filter(pl.col("operator").is_null() | (pl.col("operator") == pl.col("on")))
    made = rows.select(
        pl.lit("s").alias("subject"), pl.lit(experiment).alias("experiment"), "intervention", "pair"
    )
    for name in (*LOGITS, "mean_logit", *PROBABILITIES):
        values = pl.Series(name, rng.uniform(0.05, 1, len(rows)), pl.Float32)
        made = made.with_columns(values)
    answer = pl.col("answer_logit")
    return made.with_columns(max_logit=answer + 1, correct=answer > 0.5)


def measured(**settings: int) -> Tables:
    """Return tables in which neurons are patched, with random answers.

    One answer's probability has underflowed.
    """
    given = model()
    rows = list(product(SITES, range(NEURONS), range(len(given["pairs"]))))
    sites, neurons, numbers = zip(*rows, strict=True)
    layers, positions = zip(*sites, strict=True)
    values = np.random.default_rng(1).normal(size=len(rows)).astype(np.float32)
    given["neuron_attributions"] = frame(
        layer=layers, neuron=neurons, position=positions, pair=numbers, attribution=values
    )
    interventions = ask("neuron_interventions", only(given, *CHOICE), **settings)
    answers = runs(interventions, given["pairs"])
    is_underflow = (pl.col("pair") == 1) & (pl.col("intervention") == 2)
    probability = pl.when(is_underflow).then(0).otherwise(pl.col("answer_probability"))
    answers = answers.with_columns(answer_probability=probability.cast(pl.Float32))
    return given | {"neuron_interventions": interventions, "runs": answers}


def effects(given: Tables) -> pl.DataFrame:
    """Return the table neuron_effects, as its query makes it."""
    names = ("neuron_interventions", "runs", "pairs", "neuron_attributions", "bootstrap_weights")
    return ask("neuron_effects", only(given, *names))


def top(effects: pl.DataFrame, rank: str, k: int, method: str = "exact", **site: Any) -> set[int]:
    """Return the k neurons of highest rank of an operator, layer and position."""
    return set(effects.filter(pl.col(rank) <= k, method=method, **site)["neuron"])


def majority(pairs: pl.DataFrame, **keys: Any) -> float:
    """Return the accuracy of always predicting the most frequent answer, by counting."""
    tokens = pairs.filter(**keys)["answer_token"].to_list()
    return max(map(tokens.count, tokens)) / len(tokens)


def by_prompt(given: Tables, number: int, operator: str) -> dict[str, np.ndarray]:
    """Return both effects of an intervention for each discovery prompt, in order of pair.

    Undefined effects are not finite.
    """
    prompts = given["pairs"].filter(operator=operator, split="discovery")["pair"]
    rows = given["runs"].filter(pl.col("pair").is_in(prompts.to_list())).sort("pair")
    columns = rows.select("intervention", pl.col(*PROBABILITIES, *LOGITS).cast(float))
    p, q, r, s = columns.filter(intervention=0)[:, 1:].to_numpy().T
    p2, q2, r2, s2 = columns.filter(intervention=number)[:, 1:].to_numpy().T
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = ((q2 - q) / q + (p - p2) / p2) / 2
    return {"effect": effect, "logit_effect": ((s2 - s) + (r - r2)) / 2}
