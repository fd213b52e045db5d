"""Checks every setting, those of params.yaml and of the chapters, so that a wrong value stops the pipeline before its first
stage, not hours later.

Writes data/settings.txt, always the same: stages that depend on it wait for the check without being rerun by it.
"""

import re
from collections import Counter
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from stages.bag.settings import FailureInputs, Failures, FailureTests, Knockouts, PromptKnockouts
from stages.circuit.settings import Bootstrap, Circuit, ComponentStability, HeadCircuits, LateLayers, Pairs, Probes, SmallestCircuits
from stages.claims.settings import Faults
from stages.corpus.settings import Cells, Facts, RealTasks, Tasks
from stages.heuristics.settings import LabelCalibration, Labels, Matches, Nulls, Overlaps, Portraits, Scores, Spectra
from stages.lib.core import machine
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, Section, check, place, read, repeated
from stages.lib.core.words import CHAPTERS
from stages.lib.heuristics.grid import Heuristics
from stages.lib.settings import GgufModel, HubModel, Passes, Runs
from stages.lib.subject import MoreSubjects, Name, Point, Sizes, Subjects
from stages.mediation.settings import Mediation, MediationEffects, MediationInterventions, NeuronOverlap, OverlapFigures, UnitMediation
from stages.neurons.settings import (
    AttributionAgreement,
    AttributionRecall,
    Digits,
    NeuronCircuits,
    NeuronEffects,
    NeuronInterventions,
    OperatorOverlaps,
)
from stages.report.settings import Report
from stages.store.settings import Dump, Figures
from stages.subjects.settings import Finetuning, Planted, Train
from stages.theories.settings import Helix, TheoryFits


class Params(Section):
    """Every section of every params.yaml, and no other."""

    default: Name
    cells: Cells
    facts: Facts
    tasks: Tasks
    real_tasks: RealTasks
    train: dict[Name, Train]
    finetune: dict[Name, Finetuning]
    hub: dict[Name, HubModel]
    gguf: dict[Name, GgufModel]
    subjects: Subjects
    checkpoints: MoreSubjects
    finetuned: MoreSubjects
    stored: MoreSubjects
    known: Subjects
    kept: Subjects
    pictured: Subjects
    dumped: Subjects
    mediated: Subjects
    sizes: dict[Name, Sizes]
    sized: dict[Name, dict[str, Any]]
    trajectory: dict[str, Point]
    digits: dict[Name, Digits]
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
    neuron_interventions: NeuronInterventions
    neuron_effects: NeuronEffects
    attribution_agreement: AttributionAgreement
    attribution_recall: AttributionRecall
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
    helix: Helix
    theory_fits: TheoryFits
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
            before, tuned = self.finetune[name].before, self.subjects | self.checkpoints
            if before not in tuned:
                raise ValueError(f"finetune.{name}.before is {before!r}; there are {', '.join(tuned)}")
            if self.finetune[name].source != tuned[before].source:
                raise ValueError(f"finetune.{name}.source = {self.finetune[name].source!r} is not that of {before}")
            if subject.bos != self.finetune[name].bos:
                problem = "its prompts would not begin as in training"
                raise ValueError(f"finetuned.{name}.bos is not finetune.{name}.bos; {problem}")
        return self

    @model_validator(mode="after")
    def _one_folder_one_model(self) -> Self:
        made = [*self.train, "planted", *self.finetune, *self.hub, *self.gguf]
        if both := sorted(name for name, count in Counter(made).items() if count > 1):
            problem = "is made by two of train, plant, finetune, hub and gguf"
            raise ValueError(f"data/models/{both[0]} {problem}; call one of them something else")
        return self

    @model_validator(mode="after")
    def _default_is_a_subject(self) -> Self:
        if self.default not in self.subjects:
            raise ValueError(f"default is {self.default!r}; there are the subjects {', '.join(self.subjects)}")
        if self.labels.level not in self.label_calibration.levels:
            levels = ", ".join(map(str, self.label_calibration.levels))
            raise ValueError(f"labels.level is {self.labels.level}; label_calibration.levels has {levels}")
        if self.nulls.smallest_corrected < self.scores.smallest_corrected:
            raise ValueError(
                f"nulls.smallest_corrected is below scores.smallest_corrected, {self.scores.smallest_corrected}: no such score is kept"
            )
        for name, subject in self.known.items():
            step = re.fullmatch(r"data/models/([^/]+)/step-(\d{5,})", subject.source)
            if step and step[1] in self.train and int(step[2]) not in (kept := self.train[step[1]].checkpoints):
                raise ValueError(f"{name} is step {int(step[2])} of {step[1]}, which train does not keep: {kept}")
        if both := sorted({"models", *CHAPTERS} & self.known.keys()):
            raise ValueError(f"{both[0]} is a folder of data/ already; call the subject something else")
        return self

    @model_validator(mode="after")
    def _what_all_are_compared_with(self) -> Self:
        for section in ("train", "finetune", "trajectory"):
            if not getattr(self, section):
                raise ValueError(
                    f"{section} has no entry, and the stages that compare points of training read what its entries make; "
                    "leave our own models in, they ship with the project"
                )
        if "planted" not in self.subjects:
            raise ValueError("subjects lacks planted; labels are calibrated on its neurons, of which it is known what they are")
        return self

    @model_validator(mode="after")
    def _operands_are_of_the_grid(self) -> Self:
        for name, subject in self.mediated.items():
            if (subject.largest_operand or 0) > self.cells.largest_operand:
                raise ValueError(f"{name}.largest_operand is above cells.largest_operand, {self.cells.largest_operand}, the grid's")
        return self

    @model_validator(mode="after")
    def _one_name_one_model(self) -> Self:
        if both := sorted(self.subjects.keys() & self.checkpoints.keys()):
            raise ValueError(f"{both[0]} is both a subject and a checkpoint; leave out the checkpoint")
        if self.dumped != self.subjects | self.checkpoints:
            raise ValueError("dumped must be the subjects and the checkpoints: `dumped: {<<: [*subjects, *checkpoints]}`")
        if self.mediated != self.dumped | self.finetuned:
            raise ValueError(
                "mediated must be the subjects, the checkpoints and the finetuned: `mediated: {<<: [*subjects, *checkpoints, *finetuned]}`"
            )
        for name, point in self.trajectory.items():
            if name not in self.dumped or point.last not in self.trajectory or point.last not in self.subjects:
                raise ValueError(f"trajectory.{name}: it must be a subject or a checkpoint, and its last a subject and in trajectory")
            if point.source != self.dumped[name].source:
                raise ValueError(f"trajectory.{name}.source = {point.source!r}; {name} has the source {self.dumped[name].source!r}")
        return self

    @model_validator(mode="after")
    def _digits_are_of_one_model(self) -> Self:
        for model, digits in self.digits.items():
            for token, name in enumerate(digits.model_dump().values()):
                if name not in self.subjects:
                    raise ValueError(f"digits.{model} names {name!r}; there are the subjects {', '.join(self.subjects)}")
                if (found := self.subjects[name].answer_token) != token:
                    raise ValueError(f"digits.{model}: {name} is asked for answer_token {found}, here it stands for {token}")
                if self.subjects[name].source != (first := self.subjects[digits.first].source):
                    raise ValueError(f"digits.{model}: {name} is another model than {digits.first}, whose source is {first}")
        return self

    @model_validator(mode="after")
    def _who_gets_what(self) -> Self:
        if both := sorted(self.stored.keys() & self.mediated.keys()):
            raise ValueError(f"{both[0]} stands under stored and elsewhere; a model has one entry")
        for derived, found, of in (
            ("known", self.known, ("subjects", "checkpoints", "finetuned", "stored")),
            ("kept", self.kept, ("subjects", "checkpoints", "stored")),
            ("pictured", self.pictured, ("subjects", "stored")),
        ):
            if found != reduce(or_, (getattr(self, one) for one in of)):
                raise ValueError(f"{derived} must be `{derived}: {{<<: [{', '.join(f'*{one}' for one in of)}]}}`")
        return self

    @model_validator(mode="after")
    def _sizes_are_of_models_and_tasks(self) -> Self:
        tasks = self.mediation.pairs_per_template
        for name, sizes in self.sizes.items():
            if name not in self.mediated:
                models = ", ".join(self.mediated)
                raise ValueError(f"sizes names {name!r}; the models with experiments are {models}")
            if unknown := sorted((sizes.pairs_per_template or {}).keys() - tasks.keys()):
                problem = f"sizes.{name}.pairs_per_template names {unknown[0]!r}"
                raise ValueError(f"{problem}; the tasks are {', '.join(tasks)}")
        entries: dict[str, Section] = {**self.known, **self.sizes}
        raw = {name: entry.model_dump(exclude_unset=True) for name, entry in entries.items()}
        if self.sized != raw:
            sections = "*sizes, *subjects, *checkpoints, *finetuned, *stored"
            raise ValueError(f"sized must be `sized: {{<<: [{sections}]}}`")
        return self


def main() -> None:
    raw = read()
    check(Params, raw)
    machine.workers()  # what the environment says is checked, too
    machine.gpus()
    if twice := repeated(raw):
        raise ParamsError(f"{place(twice.partition('.')[0])} says something twice: {twice}; leave one out")
    with replacing(Path("data/settings.txt")) as partial:
        partial.write_text("params.yaml holds only what is allowed\n", encoding="utf-8")


if __name__ == "__main__":
    main()
