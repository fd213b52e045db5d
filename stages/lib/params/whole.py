"""The whole of params.yaml, for what must be sure of all of it before any work starts."""

from typing import Self

from pydantic import model_validator

from stages.lib.params.causal import Knockouts, PromptKnockouts
from stages.lib.params.circuits import Bootstrap, Circuit, ComponentStability, HeadCircuits, Pairs, SmallestCircuits
from stages.lib.params.corpus import Cells, Facts, Tasks
from stages.lib.params.explained import Explained, Spectra
from stages.lib.params.failures import FailureInputs, Failures, FailureTests
from stages.lib.params.faults import Faults
from stages.lib.params.figures import Figures
from stages.lib.params.heuristic_figures import Portraits
from stages.lib.params.heuristics import Heuristics, LabelCalibration, Labels, Matches, Nulls, Overlaps, Scores
from stages.lib.params.neurons import AttributionAgreement, NeuronCircuits, NeuronEffects, OperatorOverlaps
from stages.lib.params.planted import Planted
from stages.lib.params.reading import LateLayers, Probes
from stages.lib.params.report import Report
from stages.lib.params.sections import Section
from stages.lib.params.subjects import Checkpoints, Dump, Point, Runs, Subjects
from stages.lib.params.training import Train


class Params(Section):
    """Every section of params.yaml, and no other."""

    cells: Cells
    facts: Facts
    tasks: Tasks
    train: Train
    subjects: Subjects
    checkpoints: Checkpoints
    dumped: Subjects
    trajectory: dict[str, Point]
    dump: Dump
    runs: Runs
    probes: Probes
    late_layers: LateLayers
    pairs: Pairs
    bootstrap: Bootstrap
    component_stability: ComponentStability
    head_circuits: HeadCircuits
    smallest_circuits: SmallestCircuits
    circuit: Circuit
    neuron_effects: NeuronEffects
    attribution_agreement: AttributionAgreement
    neuron_circuits: NeuronCircuits
    operator_overlaps: OperatorOverlaps
    heuristics: Heuristics
    planted: Planted
    scores: Scores
    nulls: Nulls
    overlaps: Overlaps
    matches: Matches
    labels: Labels
    label_calibration: LabelCalibration
    knockouts: Knockouts
    prompt_knockouts: PromptKnockouts
    failures: Failures
    failure_tests: FailureTests
    failure_inputs: FailureInputs
    faults: Faults
    spectra: Spectra
    explained: Explained
    portraits: Portraits
    figures: Figures
    report: Report

    @model_validator(mode="after")
    def _one_name_one_model(self) -> Self:
        if both := sorted(self.subjects.keys() & self.checkpoints.keys()):
            raise ValueError(f"{both[0]} is both a subject and a checkpoint; leave out the checkpoint")
        if self.dumped != self.subjects | self.checkpoints:
            raise ValueError("dumped must be the subjects and the checkpoints: `dumped: {<<: [*subjects, *checkpoints]}`")
        for name, point in self.trajectory.items():
            if name not in self.dumped or point.last not in self.trajectory or point.last not in self.subjects:
                raise ValueError(f"trajectory.{name}: it must be a subject or a checkpoint, and its last a subject and in trajectory")
            if point.source != self.dumped[name].source:
                raise ValueError(f"trajectory.{name}.source = {point.source!r}; {name} has the source {self.dumped[name].source!r}")
        return self
