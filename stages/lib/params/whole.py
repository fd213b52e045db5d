"""The whole of params.yaml, for what must be sure of all of it before any work starts."""

from typing import Self

from pydantic import model_validator

from stages.lib.params.causal import Knockouts, PromptKnockouts
from stages.lib.params.circuits import Bootstrap, Circuit, ComponentStability, HeadCircuits, Pairs, SmallestCircuits
from stages.lib.params.corpus import Cells, Facts, Tasks
from stages.lib.params.explained import Spectra
from stages.lib.params.failures import FailureInputs, Failures, FailureTests
from stages.lib.params.faults import Faults
from stages.lib.params.figures import Figures
from stages.lib.params.finetuning import Finetuning
from stages.lib.params.heuristic_figures import Portraits
from stages.lib.params.heuristics import Heuristics, LabelCalibration, Labels, Matches, Nulls, Overlaps, Scores
from stages.lib.params.machine import Machine
from stages.lib.params.mediation import Mediation, MediationEffects, MediationInterventions, NeuronOverlap, OverlapFigures, UnitMediation
from stages.lib.params.neurons import AttributionAgreement, NeuronCircuits, NeuronEffects, OperatorOverlaps
from stages.lib.params.planted import Planted
from stages.lib.params.reading import LateLayers, Probes
from stages.lib.params.report import Report
from stages.lib.params.sections import Section
from stages.lib.params.subjects import Dump, MoreSubjects, Name, Passes, Point, Runs, Subjects
from stages.lib.params.training import Train


class Params(Section):
    """Every section of params.yaml, and no other."""

    machine: Machine
    cells: Cells
    facts: Facts
    tasks: Tasks
    train: Train
    finetune: dict[Name, Finetuning]
    subjects: Subjects
    checkpoints: MoreSubjects
    finetuned: MoreSubjects
    dumped: Subjects
    mediated: Subjects
    trajectory: dict[str, Point]
    passes: Passes
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
    mediation: Mediation
    mediation_interventions: MediationInterventions
    mediation_effects: MediationEffects
    unit_mediation: UnitMediation
    neuron_overlap: NeuronOverlap
    overlap_figures: OverlapFigures
    spectra: Spectra
    portraits: Portraits
    figures: Figures
    report: Report

    @model_validator(mode="after")
    def _finetuned_are_finetuned(self) -> Self:
        if both := sorted((self.finetune.keys() | self.finetuned.keys()) & (self.subjects | self.checkpoints).keys()):
            raise ValueError(f"{both[0]} is a subject or a checkpoint; finetune makes new ones, call it something else")
        for name, subject in self.finetuned.items():
            if name not in self.finetune:
                raise ValueError(f"finetuned.{name}: finetune makes {', '.join(self.finetune) or 'nothing'}")
            if subject.source != (made := f"data/models/{name}"):
                raise ValueError(f"finetuned.{name}.source = {subject.source!r}; finetune.{name} writes {made!r}")
            if self.finetune[name].before not in self.subjects | self.checkpoints:
                raise ValueError(f"finetune.{name}.before is {self.finetune[name].before!r}; there are {', '.join(self.dumped)}")
            if self.finetune[name].source != self.dumped[self.finetune[name].before].source:
                raise ValueError(f"finetune.{name}.source = {self.finetune[name].source!r} is not that of {self.finetune[name].before}")
            if subject.bos != self.finetune[name].bos:
                raise ValueError(f"finetuned.{name}.bos is not finetune.{name}.bos; it would be asked otherwise than it was trained")
        return self

    @model_validator(mode="after")
    def _one_name_one_model(self) -> Self:
        if both := sorted(self.subjects.keys() & self.checkpoints.keys()):
            raise ValueError(f"{both[0]} is both a subject and a checkpoint; leave out the checkpoint")
        if self.dumped != self.subjects | self.checkpoints:
            raise ValueError("dumped must be the subjects and the checkpoints: `dumped: {<<: [*subjects, *checkpoints]}`")
        if self.mediated != self.dumped | self.finetuned:
            raise ValueError("mediated must be all there are: `mediated: {<<: [*subjects, *checkpoints, *finetuned]}`")
        for key, named, known in (
            ("mediation_interventions.single_heads", self.mediation_interventions.single_heads, self.mediated),
            ("unit_mediation.single_units", self.unit_mediation.single_units, self.subjects),
        ):
            for name in named:
                if name not in known:
                    raise ValueError(f"{key} names {name!r}; there are {', '.join(known)}")
        for name, point in self.trajectory.items():
            if name not in self.dumped or point.last not in self.trajectory or point.last not in self.subjects:
                raise ValueError(f"trajectory.{name}: it must be a subject or a checkpoint, and its last a subject and in trajectory")
            if point.source != self.dumped[name].source:
                raise ValueError(f"trajectory.{name}.source = {point.source!r}; {name} has the source {self.dumped[name].source!r}")
        return self
