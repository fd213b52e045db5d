"""Check the settings in stages/neurons/params.yaml: their types and allowed values."""

from typing import Annotated

from pydantic import AfterValidator, Field

from stages.lib.core.settings import Count, Few, Natural, NonNegative, Positive, Section


def _rising(numbers: list[int]) -> list[int]:
    if sorted(set(numbers)) != numbers:
        raise ValueError(f"must rise, not {numbers}; sort them and remove duplicates")
    return numbers


Counts = Annotated[list[Count], Field(min_length=1), AfterValidator(_rising)]


class NeuronInterventions(Section):
    """Neurons that are patched one at a time."""

    patched_neurons: Natural
    sampled_neurons: Natural


class NeuronEffects(Section):
    """Effects of single neurons."""

    neuron_replicates: Few


class AttributionAgreement(Section):
    """Attribution and rankings compared."""

    ks: Counts


class AttributionRecall(Section):
    """The share of important neurons that attribution finds."""

    normal: Positive


class NeuronCircuits(Section):
    """Circuits of the top neurons of each layer."""

    neurons_per_layer: Annotated[list[Natural], Field(min_length=1), AfterValidator(_rising)]
    random_circuits: Annotated[int, Field(ge=0, le=100)]


class CausalVotes(Section):
    """What neurons promote, measured by shifts of their activations."""

    vote_prompts: Count


class TunedLens(Section):
    """What neurons promote, through an affine map for each layer."""

    ridge: NonNegative


class OperatorOverlaps(Section):
    """Whether two operators use the same neurons."""

    operator_ks: Counts
