"""Settings of the chapter bag, stages/bag/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import Field

from stages.lib.core.settings import Count, Few, Positive, Section, Seed


class Knockouts(Section):
    fewest_neurons: Count
    most_heuristics: Count
    control_draws: Few
    knockout_replicates: Annotated[int, Field(ge=10, le=100000)]
    test_draws: Annotated[int, Field(ge=100, le=1000000)]
    knockout_seed: Seed


class PromptKnockouts(Section):
    neurons_per_layer: Annotated[list[Count], Field(min_length=1)]
    prompt_knockout_seed: Seed


class Steering(Section):
    steered_neurons: Annotated[list[Count], Field(min_length=1)]
    steering_draws: Annotated[int, Field(ge=1, le=9)]
    steering_seed: Seed


class Failures(Section):
    neurons_at_once: Count


class FailureTests(Section):
    normal: Positive


class FailureInputs(Section):
    span: Count
