"""Check the settings in stages/theories/params.yaml: their types and allowed values."""

from typing import Annotated

from pydantic import Field

from stages.lib.core.settings import Count, Few, Percent, Section, Seed

Period = Annotated[float, Field(ge=2, le=10_000)]


class Helix(Section):
    """Numbers as helices in the residual stream."""

    periods: Annotated[list[Period], Field(min_length=1, max_length=20)]
    prompts: Annotated[int, Field(ge=100, le=10**9)]
    study_numbers: Count
    new_numbers_percent: Percent
    shuffles: Annotated[int, Field(ge=1, le=1000)]
    longest_period: Period
    helix_seed: Seed


class TheoryFits(Section):
    """Theories of the late neurons."""

    budgets: Annotated[list[Few], Field(min_length=1)]
    control_budgets: list[Few]
    train_cells: Annotated[int, Field(ge=20, le=10**7)]
    held_out_cells: Annotated[int, Field(ge=20, le=10**7)]
    waves: Few
    neurons_at_once: Few
    fit_replicates: Annotated[int, Field(ge=10, le=100_000)]
    fit_confidence: Annotated[float, Field(gt=0, lt=1)]
    fit_seed: Seed
