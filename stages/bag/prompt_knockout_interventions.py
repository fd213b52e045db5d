"""Choose, for each prompt, the heuristic neurons to ablate, and control neurons (Sec. 4.2, Fig. 8).

Reads the subject's heuristic_neurons.parquet, prompt_associations.parquet, pairs.parquet and neuron_effects.parquet; writes
data/<subject>/bag/prompt_knockout_interventions.parquet. In every late layer the same number of neurons is chosen, by arm:
    heuristic     those of highest corrected score among the heuristics that the prompt satisfies
    count         those that stand for most of these heuristics, which is how the study's code ranks them
    control       random neurons that stand for heuristics, but for none that the prompt satisfies
    contaminated  random neurons that stand for some heuristic that the prompt does not satisfy, which is the study's control
    matched       for each of arm heuristic, the neuron of nearest effect (neuron_effects, on logits; attribution's estimate where not
                  every neuron was patched) that stands for none that the prompt satisfies

Table prompt_knockout_interventions: neurons that are silenced at the last position, for one prompt each
    subject            VARCHAR    the model
    intervention       INTEGER    number of the intervention, from 0; one row per patch
    operator           VARCHAR    of the prompt
    split              VARCHAR    prompts it is run on: evaluation
    pair               INTEGER    the one pair it is run on; null for the operator's clean run
    component          VARCHAR    neuron, or none where there is no neuron to silence
    layer              SMALLINT   a late layer, from 0
    units              INTEGER[]  the silenced neurons, from 0
    position           VARCHAR    token position: last
    key_position       VARCHAR    null, of edges only
    replacement        VARCHAR    zero or mean (over all prompts, pooled over operators with equal
                                  weight)
    membership         VARCHAR    called or scored, as in heuristic_neurons; null for the clean run
    arm                VARCHAR    as above, or none for the clean run
    neurons_per_layer  INTEGER    neurons to be silenced in each late layer; fewer where an arm has no more
    neurons            INTEGER    neurons that are silenced, in all layers
"""

import sys
from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from stages.bag.arms import ARMS, LayerHeuristics, chosen
from stages.bag.settings import PromptKnockouts
from stages.lib.core import progress
from stages.lib.core.settings import load
from stages.lib.core.tables import write_table
from stages.lib.core.words import OVERLAPPING_MEMBERSHIPS as MEMBERSHIPS
from stages.lib.subject import Subject

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "subject": pl.String, "intervention": pl.Int32, "operator": pl.String, "split": pl.String, "pair": pl.Int32, "component": pl.String,
    "layer": pl.Int16, "units": pl.List(pl.Int32), "position": pl.String, "key_position": pl.String, "replacement": pl.String,
    "membership": pl.String, "arm": pl.String, "neurons_per_layer": pl.Int32, "neurons": pl.Int32,
}  # fmt: skip
CHOICE = ("pair", "arm", "neurons_per_layer", "neurons", "layer", "units")


def main(name: str) -> None:
    subject, settings = Subject.named(name), load(PromptKnockouts)
    neurons = subject.table("heuristics/heuristic_neurons.parquet").filter("late")
    associations = subject.table("bag/prompt_associations.parquet")
    effects = comparable(subject.table("neurons/neuron_effects.parquet").filter(position="last"))
    evaluated = subject.table("circuit/pairs.parquet", ["operator", "split", "pair"]).filter(split="evaluation")
    frames = [pl.DataFrame(schema=SCHEMA)]
    for operator in neurons["operator"].unique().sort():
        pairs = evaluated.filter(operator=operator)["pair"].sort()
        frames.append(_frame([(None, "none", None, 0, None, None)], operator=operator))
        for membership in MEMBERSHIPS:
            if (of := neurons.filter(operator=operator, membership=membership)).is_empty():
                continue
            layers = [layer(of, effects.filter(operator=operator), number) for number in of["layer"].unique().sort()]
            about = associated(associations.filter(operator=operator), pairs, [one.heuristics for one in layers])
            chosen_here = choices(layers, about, pairs, settings, f"{name} {operator} {membership}")
            frames.append(_frame(chosen_here, operator=operator, membership=membership))
    write_table(numbered(pl.concat(frames, how="diagonal"), name), subject.path("bag/prompt_knockout_interventions.parquet"))


def comparable(effects: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one method: exact where every neuron was patched, else attribution."""
    exact, estimated = (effects.filter(method=method) for method in ("exact", "attribution"))
    return estimated if len(exact) < len(estimated) else exact


def layer(members: pl.DataFrame, effects: pl.DataFrame, number: int) -> LayerHeuristics:
    """One layer of an operator. members: rows of heuristic_neurons of one membership; effects: of neuron_effects."""
    members, effects = members.filter(layer=number), effects.filter(layer=number)
    heuristics = members["heuristic"].unique().sort()
    width = 1 + max([*members["neuron"], *effects["neuron"]])
    scores, strengths = np.zeros((len(heuristics), width), np.float32), np.full(width, np.nan)
    scores[heuristics.search_sorted(members["heuristic"]).to_numpy(), members["neuron"]] = members["corrected"]
    strengths[effects["neuron"]] = effects["logit_effect"]
    return LayerHeuristics(number, heuristics.to_list(), scores, strengths)


def associated(associations: pl.DataFrame, pairs: pl.Series, heuristics: list[list[str]]) -> list[np.ndarray]:
    """For each layer, which of its heuristics each pair satisfies: bool (pairs, heuristics)."""
    found = []
    for names in heuristics:
        here = associations.filter(pl.col("heuristic").is_in(names), pl.col("pair").is_in(pairs.implode()))
        heuristic = pl.Series(names, dtype=pl.String).search_sorted(here["heuristic"])
        about = np.zeros((len(pairs), len(names)), bool)
        about[pairs.search_sorted(here["pair"]).to_numpy(), heuristic.to_numpy()] = True
        found.append(about)
    return found


def choices(
    layers: list[LayerHeuristics], about: list[np.ndarray], pairs: pl.Series, settings: PromptKnockouts, name: str
) -> Iterator[tuple]:
    """A CHOICE for each prompt, arm, count and layer; where an arm has no neuron in any layer, one without layer and units."""
    counts = sorted(set(settings.neurons_per_layer))
    for place, pair in enumerate(progress.bar(pairs, desc=f"choosing {name}", unit="prompt", leave=False)):
        seed = (settings.prompt_knockout_seed, pair)
        orders = [chosen(one, mask[place], counts[-1], seed) for one, mask in zip(layers, about, strict=True)]
        for arm in ARMS:
            for count in counts:
                units = [(one.number, np.sort(order[arm][:count]).tolist()) for one, order in zip(layers, orders, strict=True)]
                silenced = sum(len(some) for _, some in units)
                patches: list[tuple] = [(number, some) for number, some in units if some] or [(None, None)]
                yield from ((pair, arm, count, silenced, *patch) for patch in patches)


def _frame(rows: Iterable[tuple], **constants: str) -> pl.DataFrame:
    frame = pl.DataFrame(list(rows), schema={name: SCHEMA[name] for name in CHOICE}, orient="row")
    return frame.with_columns(pl.lit(value).alias(name) for name, value in constants.items())


def numbered(rows: pl.DataFrame, subject: str) -> pl.DataFrame:
    """The whole table: every choice with either replacement, numbered."""
    keys = ["operator", "membership", "pair", "arm", "neurons_per_layer", "replacement"]
    patched = rows.with_columns(replacement=pl.when(arm="none").then([None]).otherwise(["zero", "mean"])).explode("replacement")
    some = pl.when(pl.col("units").is_not_null())
    ordered = patched.with_columns(
        subject=pl.lit(subject), split=pl.lit("evaluation"), component=some.then(pl.lit("neuron")).otherwise(pl.lit("none")),
        position=some.then(pl.lit("last")),
    ).sort(*keys, "layer", nulls_last=False)  # fmt: skip
    number = ordered.select(pl.struct(keys).rle_id().alias("intervention"))["intervention"]
    return ordered.with_columns(number).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


if __name__ == "__main__":
    main(sys.argv[1])
