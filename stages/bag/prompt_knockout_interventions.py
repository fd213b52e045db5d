"""Choose, for each prompt, the heuristic neurons to ablate, and control neurons (Sec. 4.2, Fig. 8).

The stage reads the model's heuristic_neurons.parquet, prompt_associations.parquet, pairs.parquet
and neuron_effects.parquet. It writes data/<subject>/bag/prompt_knockout_interventions.parquet. The
same number of neurons is chosen in every late layer, by arm:
    heuristic     neurons with the highest chance-corrected score among the heuristics that the
                  prompt satisfies
    count         neurons that have most of these heuristics, which is how the study's code ranks
                  them
    control       random neurons that have heuristics, but none that the prompt satisfies
    contaminated  random neurons that have some heuristic that the prompt does not satisfy, which is
                  the study's control
    matched       for each neuron of arm heuristic, the neuron of nearest effect that has no
                  heuristic that the prompt satisfies. The effect is on logits (neuron_effects):
                  exact where every neuron was patched, else estimated by attribution

Table prompt_knockout_interventions: neurons that are ablated at the last position, by prompt
    subject            VARCHAR    the model
    intervention       INTEGER    number of the intervention, from 0; one row per patch
    operator           VARCHAR    operator of the prompt: add, subtract, multiply or divide
    split              VARCHAR    split of the prompts that it is run on: evaluation
    pair               INTEGER    number of the one pair that it is run on; null for the operator's
                                  clean run
    component          VARCHAR    neuron, or none where there is no neuron to ablate
    layer              SMALLINT   late layer of the neurons, from 0
    units              INTEGER[]  the ablated neurons of the layer's MLP, from 0
    position           VARCHAR    token position of the patch: last
    key_position       VARCHAR    always null; only attention edges have a key position
    replacement        VARCHAR    value that the activations take: zero or mean (over all prompts,
                                  pooled over operators with equal weight)
    criterion          VARCHAR    criterion by which neurons have heuristics, as in
                                  heuristic_neurons: fdr or threshold; null for the clean run
    arm                VARCHAR    heuristic, count, control, contaminated or matched (see above), or
                                  none for the clean run
    neurons_per_layer  INTEGER    neurons to be ablated in each late layer; fewer are ablated where
                                  an arm has no more
    neurons            INTEGER    neurons that are ablated, in all layers together
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import polars as pl

from stages.bag.arms import ARMS, LayerHeuristics, neurons_by_arm
from stages.bag.settings import PromptKnockouts
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.vocabulary import OVERLAPPING_CRITERIA as CRITERIA
from stages.lib.subject import Subject

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "subject": pl.String,
    "intervention": pl.Int32,
    "operator": pl.String,
    "split": pl.String,
    "pair": pl.Int32,
    "component": pl.String,
    "layer": pl.Int16,
    "units": pl.List(pl.Int32),
    "position": pl.String,
    "key_position": pl.String,
    "replacement": pl.String,
    "criterion": pl.String,
    "arm": pl.String,
    "neurons_per_layer": pl.Int32,
    "neurons": pl.Int32,
}


class Choice(NamedTuple):
    """Name the neurons of one layer to ablate for one prompt.

    layer and units are None where there is no neuron to ablate; neurons counts those of all layers.
    """

    pair: int | None
    arm: str
    neurons_per_layer: int | None
    neurons: int
    layer: int | None = None
    units: list[int] | None = None


CLEAN_RUN = Choice(pair=None, arm="none", neurons_per_layer=None, neurons=0)


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(PromptKnockouts)
    heuristic_neurons = subject.table("heuristics/heuristic_neurons.parquet").filter("late")
    associations = subject.table("bag/prompt_associations.parquet")
    effects = comparable(subject.table("neurons/neuron_effects.parquet").filter(position="last"))
    pairs = subject.table("circuit/pairs.parquet", ["operator", "split", "pair"])
    evaluated = pairs.filter(split="evaluation")
    frames = [pl.DataFrame(schema=SCHEMA)]
    for operator in heuristic_neurons["operator"].unique().sort():
        frames.append(_frame([CLEAN_RUN], operator=operator))
        prompts = evaluated.filter(operator=operator)["pair"].sort()
        own_effects = effects.filter(operator=operator)
        satisfied = associations.filter(operator=operator)
        for criterion in CRITERIA:
            members = heuristic_neurons.filter(operator=operator, criterion=criterion)
            layers = layer_heuristics(members, own_effects)
            masks = [associated(satisfied, prompts, layer.heuristics) for layer in layers]
            title = f"choosing {name} {operator} {criterion}"
            if layers:
                choices = choose(layers, masks, prompts, settings, title)
                frames.append(_frame(choices, operator=operator, criterion=criterion))
    table = numbered(pl.concat(frames, how="diagonal"), name)
    write_table(table, subject.path("bag/prompt_knockout_interventions.parquet"))


def comparable(effects: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one method: exact where every neuron was patched, else attribution."""
    exact, estimated = (effects.filter(method=method) for method in ("exact", "attribution"))
    return estimated if len(exact) < len(estimated) else exact


def layer_heuristics(members: pl.DataFrame, effects: pl.DataFrame) -> list[LayerHeuristics]:
    """Return the heuristics of each layer that has some, in order of layer.

    members: rows of heuristic_neurons of one operator and criterion; effects: the operator's rows
    of neuron_effects.
    """
    return [
        _layer(number, members.filter(layer=number), effects.filter(layer=number))
        for number in members["layer"].unique().sort()
    ]


def _layer(number: int, members: pl.DataFrame, effects: pl.DataFrame) -> LayerHeuristics:
    heuristics = members["heuristic"].unique().sort()
    width = 1 + max([*members["neuron"], *effects["neuron"]])
    scores = np.zeros((len(heuristics), width), np.float32)
    rows = heuristics.search_sorted(members["heuristic"]).to_numpy()
    scores[rows, members["neuron"]] = members["chance_corrected"]
    strengths = np.full(width, np.nan)
    strengths[effects["neuron"]] = effects["logit_effect"]
    return LayerHeuristics(number, heuristics.to_list(), scores, strengths)


def associated(associations: pl.DataFrame, pairs: pl.Series, heuristics: list[str]) -> np.ndarray:
    """Return which of the sorted heuristics each of the sorted pairs satisfies.

    The result is bool (pairs, heuristics).
    """
    mask = np.zeros((len(pairs), len(heuristics)), bool)
    has_heuristic = pl.col("heuristic").is_in(heuristics)
    rows = associations.filter(has_heuristic, pl.col("pair").is_in(pairs.implode()))
    columns = pl.Series(heuristics, dtype=pl.String).search_sorted(rows["heuristic"])
    mask[pairs.search_sorted(rows["pair"]).to_numpy(), columns.to_numpy()] = True
    return mask


def choose(
    layers: list[LayerHeuristics],
    masks: list[np.ndarray],
    pairs: pl.Series,
    settings: PromptKnockouts,
    title: str,
) -> Iterator[Choice]:
    """Yield the choices for each prompt, arm, number of neurons per layer, and layer.

    masks: for each layer what `associated` returns; title: of the progress bar.
    """
    counts = sorted(set(settings.neurons_per_layer))
    prompts = progress.bar(pairs, desc=title, unit="prompt", leave=False)
    for row, pair in enumerate(prompts):
        seed = (settings.prompt_knockout_seed, pair)
        ranked = {
            layer.number: neurons_by_arm(layer, mask[row], counts[-1], seed)
            for layer, mask in zip(layers, masks, strict=True)
        }
        for arm, count in product(ARMS, counts):
            units = {number: np.sort(arms[arm][:count]) for number, arms in ranked.items()}
            yield from _choices(pair, arm, count, units)


def _choices(pair: int, arm: str, count: int, units: dict[int, np.ndarray]) -> list[Choice]:
    """Return the choice of each layer with neurons; units: layer -> neurons to ablate."""
    keys = (pair, arm, count, sum(map(len, units.values())))
    patches = [Choice(*keys, layer, own.tolist()) for layer, own in units.items() if len(own)]
    return patches or [Choice(*keys)]


def _frame(choices: Iterable[Choice], **constants: str) -> pl.DataFrame:
    schema = {name: SCHEMA[name] for name in Choice._fields}
    frame = pl.DataFrame(list(choices), schema=schema, orient="row")
    return frame.with_columns(pl.lit(value).alias(name) for name, value in constants.items())


def numbered(rows: pl.DataFrame, subject: str) -> pl.DataFrame:
    """Return the whole table: every choice with either replacement, numbered."""
    keys = ["operator", "criterion", "pair", "arm", "neurons_per_layer", "replacement"]
    replacements = pl.when(arm="none").then([None]).otherwise(["zero", "mean"])
    patched = rows.with_columns(replacement=replacements).explode("replacement")
    has_units = pl.when(pl.col("units").is_not_null())
    ordered = patched.with_columns(
        subject=pl.lit(subject),
        split=pl.lit("evaluation"),
        component=has_units.then(pl.lit("neuron")).otherwise(pl.lit("none")),
        position=has_units.then(pl.lit("last")),
    ).sort(*keys, "layer", nulls_last=False)
    number = ordered.select(pl.struct(keys).rle_id().alias("intervention"))["intervention"]
    table = ordered.with_columns(number)
    return table.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


if __name__ == "__main__":
    main(sys.argv[1])
