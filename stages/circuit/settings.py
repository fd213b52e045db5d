"""Settings of the chapter circuit, stages/circuit/params.yaml: types and allowed values."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.lib.core.settings import Count, Natural, Section, Seed


def _different(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"must all be different, they are {values}")
    return values


OpenShare = Annotated[float, Field(gt=0, lt=1)]


class Pairs(Section):
    pairs_per_split: Annotated[int, Field(ge=1, le=100_000)]
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_different)]
    counterfactual: Literal["any_operator", "same_operator"]


class Bootstrap(Section):
    replicates: Annotated[int, Field(ge=10, le=100_000)]
    confidence: OpenShare
    resampling_seed: Seed


class ComponentStability(Section):
    top_heads: Count


class HeadCircuits(Section):
    head_counts: Annotated[list[Natural], Field(min_length=1)]
    random_head_circuits: Annotated[int, Field(ge=0, le=1000)]


class SmallestCircuits(Section):
    targets: Annotated[list[OpenShare], Field(min_length=1)]
    ranking: Literal["effect", "logit_effect"]


class Circuit(Section):
    target: OpenShare


class Probes(Section):
    prompts: Annotated[int, Field(ge=20, le=10**9)]
    fewest_prompts: Annotated[int, Field(ge=20, le=10**9)]
    test_percent: Annotated[int, Field(ge=10, le=50)]
    shrinkage: Annotated[float, Field(gt=0, le=1)]
    seed: Seed


class LateLayers(Section):
    readable: OpenShare
    least_plateau: OpenShare
