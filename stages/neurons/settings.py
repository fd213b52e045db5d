"""Settings of the chapter neurons, stages/neurons/params.yaml: types and allowed values."""

from typing import Annotated

from pydantic import AfterValidator, Field

from stages.lib.core.settings import Count, Few, Natural, Positive, Section


def _rising(numbers: list[int]) -> list[int]:
    if sorted(set(numbers)) != numbers:
        raise ValueError(f"must rise, they are {numbers}")
    return numbers


Counts = Annotated[list[Count], Field(min_length=1), AfterValidator(_rising)]


class NeuronInterventions(Section):
    patched_neurons: Natural
    sampled_neurons: Natural


class NeuronEffects(Section):
    neuron_replicates: Few


class AttributionAgreement(Section):
    ks: Counts


class AttributionRecall(Section):
    normal: Positive


class NeuronCircuits(Section):
    neurons_per_layer: Annotated[list[Natural], Field(min_length=1), AfterValidator(_rising)]
    random_circuits: Annotated[int, Field(ge=0, le=100)]


class OperatorOverlaps(Section):
    operator_ks: Counts


class Digits(Section):
    """The subjects that are asked for the first, second and third token of one model's answers."""

    first: str
    second: str
    third: str
