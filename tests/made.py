"""Small made tables for the queries, and a way to ask a real query about them."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from tests.micro import ROOT

OPERATORS, LAYERS, NEURONS, HEADS, FIRST = ["add", "subtract"], 3, 6, 2, 1
SITES = [(0, role) for role in ("op1", "operator", "op2")] + [
    (layer, "last") for layer in range(FIRST, LAYERS)
]
KS = [1, 3, 6]
CHOICE = (
    "architecture",
    "late_layers",
    "pairs",
    "neuron_attributions",
)  # what neuron_interventions reads
SETTINGS: dict[str, Any] = {  # where a test says nothing else
    "subject": "s", "pairs_per_split": 6, "seeds": [0, 7, 9], "counterfactual": "any_operator", "replicates": 300, "confidence": 0.9,
    "resampling_seed": 0, "top_heads": 2, "head_counts": [0, 1, 2, 4, 99], "random_circuits": 3, "targets": [0.5, 0.9],
    "ranking": "logit_effect", "target": 0.9, "neuron_replicates": 30, "patched_neurons": 0, "sampled_neurons": 2,
    "ks": KS, "operator_ks": KS, "normal": 1.96,
}  # fmt: skip
SHORT = dict.fromkeys(["layer", "head", "layers", "heads", "head_width", "first_layer"], pl.Int16)
LONG = dict.fromkeys(
    ["pair", "answer_token", "seed", "neuron", "intervention", "width", "neurons", "vocabulary"],
    pl.Int32,
)
NL = (pl.col("answer_logit") - pl.col("mean_logit")) / (
    pl.col("max_logit") - pl.col("mean_logit")
)  # Eq. 2, of `runs`
Tables = dict[str, pl.DataFrame]
described = cache(tables)  # no test changes the project's own files


def frame(**columns: Any) -> pl.DataFrame:
    """A table whose numbers have the types that they have in the project."""
    made = pl.DataFrame(columns, strict=False)
    return made.with_columns(
        pl.col(name).cast(kind) for name, kind in (SHORT | LONG).items() if name in made.columns
    )


def ask(stage: str, given: Tables, **parameters: Any) -> pl.DataFrame:
    """What the query of this stage says of these tables: the columns and types of its header, and the same twice."""
    table = described(ROOT / "stages")[stage]
    query = table.path.read_text()
    with TemporaryDirectory() as folder:
        files = {name: [Path(folder) / f"{name}.parquet"] for name in given}
        for name, rows in given.items():
            rows.write_parquet(files[name][0])
        databases = [Database(files, threads=1) for _ in range(2)]
        named = databases[0].connection.extract_statements(query)[0].named_parameters
        values = {name: SETTINGS[name] for name in named & SETTINGS.keys()} | parameters
        relation, again = (database.sql(query, **values) for database in databases)
        documented = [(name, kind) for name, (kind, _) in table.columns.items()]
        assert list(zip(relation.columns, map(str, relation.types), strict=True)) == documented
        answer = relation.pl()
        assert again.pl().equals(answer)
    return answer


def model() -> Tables:
    """Three layers, of which the last two are late, two operators, eight prompts each and split."""
    weights = ask("bootstrap_weights", {"pairs": pairs()}, replicates=40).sample(
        fraction=1, shuffle=True, seed=0
    )
    return {
        "architecture": architecture(),
        "late_layers": late_layers(FIRST),
        "pairs": pairs(),
        "bootstrap_weights": weights,
    }


def architecture() -> pl.DataFrame:
    return frame(
        subject="s",
        layers=LAYERS,
        width=12,
        neurons=NEURONS,
        heads=HEADS,
        head_width=4,
        vocabulary=20,
    )


def late_layers(first: int | None) -> pl.DataFrame:
    return frame(subject="s", first_layer=[first], layers=LAYERS)


def pairs(per_seed: int = 4, seeds: int = 2) -> pl.DataFrame:
    """The columns of `pairs` that the measuring queries read."""
    rows = [
        (o, split, s)
        for o in OPERATORS
        for split in ("discovery", "evaluation")
        for s in range(seeds)
        for _ in range(per_seed)
    ]
    operators, splits, drawn = zip(*rows, strict=True)
    answers = np.random.default_rng(2).integers(3, 7, len(rows))
    columns = {"operator": operators, "split": splits, "seed": drawn, "answer_token": answers}
    return frame(subject="s", pair=range(len(rows)), **columns)


def of(given: Tables, *names: str) -> Tables:
    return {name: given[name] for name in names}


def runs(
    interventions: pl.DataFrame, of: pl.DataFrame, experiment: str = "neurons"
) -> pl.DataFrame:
    """Random answers of every intervention to its prompts."""
    rng = np.random.default_rng(len(experiment))
    once = interventions.select("intervention", "operator", "split").unique(maintain_order=True)
    rows = once.join(of.select("pair", "split", on="operator"), on="split").filter(
        pl.col("operator").is_null() | (pl.col("operator") == pl.col("on")),
    )
    names = [
        "answer_logit",
        "counterfactual_logit",
        "mean_logit",
        "answer_probability",
        "counterfactual_probability",
    ]
    made = rows.select(pl.lit("s").alias("subject"), pl.lit(experiment).alias("experiment"), "intervention", "pair").with_columns(
        pl.Series(name, rng.uniform(0.05, 1, len(rows)), pl.Float32) for name in names
    )  # fmt: skip
    return made.with_columns(
        max_logit=pl.col("answer_logit") + 1, correct=pl.col("answer_logit") > 0.5
    )


def measured(**settings: int) -> Tables:
    """Every neuron patched, or some: random answers, one of them with a probability that underflowed."""
    given = model()
    rows = [
        (layer, n, role, p, 0.0)
        for layer, role in SITES
        for n in range(NEURONS)
        for p in range(len(given["pairs"]))
    ]
    layers, neurons, positions, numbers, _ = zip(*rows, strict=True)
    values = np.random.default_rng(1).normal(size=len(rows)).astype(np.float32)
    given["neuron_attributions"] = frame(
        layer=layers,
        neuron=neurons,
        position=positions,
        pair=numbers,
        attribution=values,
    )
    interventions = ask("neuron_interventions", of(given, *CHOICE), **settings)
    made = runs(interventions, given["pairs"])
    nothing_left = (
        pl.when(pl.col("pair") == 1, pl.col("intervention") == 2)
        .then(0)
        .otherwise(pl.col("answer_probability"))
    )
    made = made.with_columns(answer_probability=nothing_left.cast(pl.Float32))
    return given | {"neuron_interventions": interventions, "runs": made}


def effects(given: Tables) -> pl.DataFrame:
    names = ("neuron_interventions", "runs", "pairs", "neuron_attributions", "bootstrap_weights")
    return ask("neuron_effects", of(given, *names))


def top(effects: pl.DataFrame, rank: str, k: int, **of: Any) -> set[int]:
    """The k neurons that rank highest, of one operator, layer and position."""
    return set(effects.filter(pl.col(rank) <= k, method=of.pop("method", "exact"), **of)["neuron"])


def majority(pairs: pl.DataFrame, **of: Any) -> float:
    """The accuracy of always predicting the most frequent answer of these pairs, by brute force."""
    tokens = pairs.filter(**of)["answer_token"].to_list()
    return max(tokens.count(token) for token in tokens) / len(tokens)


def by_prompt(given: Tables, number: int, operator: str) -> dict[str, np.ndarray]:
    """Both effects of an intervention (Eq. 1 and of logits) per discovery prompt, in order of pair; not finite where undefined."""
    prompts = given["pairs"].filter(operator=operator, split="discovery")["pair"]
    rows = given["runs"].filter(pl.col("pair").is_in(prompts.to_list())).sort("pair")
    clean, patched = (rows.filter(intervention=n) for n in (0, number))
    columns = (
        "answer_probability",
        "counterfactual_probability",
        "answer_logit",
        "counterfactual_logit",
    )
    p, q, r, s = (clean[c].to_numpy().astype(float) for c in columns)
    p2, q2, r2, s2 = (patched[c].to_numpy().astype(float) for c in columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = ((q2 - q) / q + (p - p2) / p2) / 2
    return {"effect": effect, "logit_effect": ((s2 - s) + (r - r2)) / 2}
