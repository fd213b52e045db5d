"""Check every setting of all params.yaml files before the first stage of the pipeline.

Writes data/settings.txt, whose content never changes: the stages that depend on it wait for the
check, but the check does not rerun them.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from stages.bag.settings import (
    FailureInputs,
    Failures,
    FailureTests,
    Knockouts,
    PromptKnockouts,
    Steering,
)
from stages.circuit.settings import (
    Bootstrap,
    Circuit,
    ComponentStability,
    HeadCircuits,
    LateLayers,
    Pairs,
    Probes,
    SmallestCircuits,
)
from stages.claims.settings import Faults
from stages.corpus.settings import Cells, Facts, RealTasks, Tasks
from stages.heuristics.settings import (
    LabelCalibration,
    Labels,
    Matches,
    Overlaps,
    PermutationTests,
    Portraits,
    Scores,
    Spectra,
)
from stages.lib.core import environment
from stages.lib.core.files import replacing
from stages.lib.core.settings import ParamsError, Section, check, place, read, repeated
from stages.lib.core.vocabulary import CHAPTERS
from stages.lib.heuristics.catalogue_grid import Heuristics
from stages.lib.settings import Digits, GgufModel, HubModel, Passes, Runs
from stages.lib.subject import MoreSubjects, Name, Point, Sizes, Subjects, SubjectSettings
from stages.mediation.settings import (
    Mediation,
    MediationEffects,
    MediationInterventions,
    NeuronOverlap,
    OverlapFigures,
    UnitMediation,
)
from stages.neurons.settings import (
    AttributionAgreement,
    AttributionRecall,
    CausalVotes,
    NeuronCircuits,
    NeuronEffects,
    NeuronInterventions,
    OperatorOverlaps,
    TunedLens,
)
from stages.report.settings import Report
from stages.store.settings import Dump, Figures
from stages.subjects.settings import Finetuning, Planted, Train
from stages.theories.settings import Helix, TheoryFits

# section that is merged from other sections -> these sections, as YAML anchors
MERGED = {
    "known": ("subjects", "checkpoints", "finetuned", "stored"),
    "with_activations": ("subjects", "checkpoints", "stored"),
    "with_figures": ("subjects", "stored"),
}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


class Params(Section):
    """All sections of all params.yaml files."""

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
    with_activations: Subjects
    with_figures: Subjects
    with_pairs: Subjects
    with_mediation: Subjects
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
    causal_votes: CausalVotes
    tuned_lens: TunedLens
    heuristics: Heuristics
    planted: Planted
    scores: Scores
    permutation_tests: PermutationTests
    overlaps: Overlaps
    matches: Matches
    labels: Labels
    label_calibration: LabelCalibration
    knockouts: Knockouts
    prompt_knockouts: PromptKnockouts
    steering: Steering
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
    def _check_finetuned(self) -> Self:
        entries = self.subjects | self.checkpoints
        both = sorted(entries.keys() & (self.finetune.keys() | self.finetuned.keys()))
        if both:
            problem = f"{both[0]} is a subject or a checkpoint, but finetune makes new models"
            raise ValueError(f"{problem}; choose another name")
        for name, subject in self.finetuned.items():
            if name not in self.finetune:
                made = _listed(self.finetune) or "nothing"
                raise ValueError(f"finetuned.{name}: finetune makes {made}")
            self._check_run(name, subject, entries)
        return self

    def _check_run(self, name: str, subject: SubjectSettings, entries: Subjects) -> None:
        """Raise ValueError if a finetuned model's entry disagrees with its training run."""
        run, folder = self.finetune[name], f"data/models/{name}"
        if subject.source != folder:
            problem = f"finetuned.{name}.source = {subject.source!r}"
            raise ValueError(f"{problem}; finetune.{name} writes {folder!r}")
        if run.before not in entries:
            problem = f"finetune.{name}.before is {run.before!r}"
            raise ValueError(f"{problem}; there are {_listed(entries)}")
        if run.source != entries[run.before].source:
            problem = f"finetune.{name}.source = {run.source!r}"
            raise ValueError(f"{problem} is not that of {run.before}")
        if subject.bos != run.bos:
            problem = f"finetuned.{name}.bos is not finetune.{name}.bos"
            raise ValueError(f"{problem}; its prompts would not begin as in training")

    @model_validator(mode="after")
    def _check_folders(self) -> Self:
        made = [*self.train, "planted", *self.finetune, *self.hub, *self.gguf]
        twice = sorted(name for name, count in Counter(made).items() if count > 1)
        if twice:
            problem = "is made by two of train, plant, finetune, hub and gguf"
            raise ValueError(f"data/models/{twice[0]} {problem}; rename one of them")
        return self

    @model_validator(mode="after")
    def _check_names_and_levels(self) -> Self:
        if self.default not in self.subjects:
            problem = f"default is {self.default!r}"
            raise ValueError(f"{problem}; there are the subjects {_listed(self.subjects)}")
        levels = self.label_calibration.levels
        if self.labels.level not in levels:
            problem = f"labels.level is {self.labels.level}"
            allowed = _listed(map(str, levels))
            raise ValueError(f"{problem}; label_calibration.levels has {allowed}")
        smallest = self.scores.smallest_chance_corrected
        if self.permutation_tests.smallest_chance_corrected < smallest:
            raise ValueError(
                "permutation_tests.smallest_chance_corrected is below "
                f"scores.smallest_chance_corrected, {smallest}: no such score is kept; raise it"
            )
        for name, subject in self.known.items():
            self._check_step(name, subject.source)
        both = sorted({"models", *CHAPTERS} & self.known.keys())
        if both:
            raise ValueError(f"{both[0]} is a folder of data/ already; rename the subject")
        return self

    def _check_step(self, name: str, source: str) -> None:
        """Raise ValueError if a source is a step of our training that `train` does not keep."""
        match = re.fullmatch(r"data/models/([^/]+)/step-(\d{5,})", source)
        if not match or match[1] not in self.train:
            return
        run, step = match[1], int(match[2])
        steps = self.train[run].checkpoints
        if step not in steps:
            raise ValueError(f"{name} is step {step} of {run}, which train does not keep: {steps}")

    @model_validator(mode="after")
    def _check_shipped(self) -> Self:
        for section in ("train", "finetune", "trajectory"):
            if not getattr(self, section):
                raise ValueError(
                    f"{section} has no entry, and the stages that compare points of training read "
                    "what its entries make; leave our own models in, they ship with the project"
                )
        if "planted" not in self.subjects:
            reason = "labels are calibrated on its neurons, whose heuristics are known"
            raise ValueError(f"subjects lacks planted; {reason}")
        return self

    @model_validator(mode="after")
    def _check_operands(self) -> Self:
        largest = self.cells.largest_operand
        for name, subject in self.with_mediation.items():
            if (subject.largest_operand or 0) > largest:
                problem = f"{name}.largest_operand is above cells.largest_operand"
                raise ValueError(f"{problem}, {largest}, the largest operand of the grid")
        return self

    @model_validator(mode="after")
    def _check_trajectory(self) -> Self:
        both = sorted(self.subjects.keys() & self.checkpoints.keys())
        if both:
            problem = f"{both[0]} is both a subject and a checkpoint"
            raise ValueError(f"{problem}; leave out the checkpoint")
        if self.with_pairs != self.subjects | self.checkpoints:
            merge = "`with_pairs: {<<: [*subjects, *checkpoints]}`"
            raise ValueError(f"with_pairs must be the subjects and the checkpoints: {merge}")
        if self.with_mediation != self.with_pairs | self.finetuned:
            merge = "`with_mediation: {<<: [*subjects, *checkpoints, *finetuned]}`"
            models = "the subjects, the checkpoints and the finetuned"
            raise ValueError(f"with_mediation must be {models}: {merge}")
        for name, point in self.trajectory.items():
            is_last = point.last in self.trajectory and point.last in self.subjects
            if name not in self.with_pairs or not is_last:
                raise ValueError(
                    f"trajectory.{name}: it must be a subject or a checkpoint, and its last a "
                    "subject and in trajectory"
                )
            source = self.with_pairs[name].source
            if point.source != source:
                problem = f"trajectory.{name}.source = {point.source!r}"
                raise ValueError(f"{problem}; {name} has the source {source!r}")
        return self

    @model_validator(mode="after")
    def _check_digits(self) -> Self:
        for model, digits in self.digits.items():
            for token, name in enumerate(digits.entries):
                if name not in self.subjects:
                    problem = f"digits.{model} names {name!r}"
                    raise ValueError(f"{problem}; there are the subjects {_listed(self.subjects)}")
                subject = self.subjects[name]
                if subject.answer_token != token:
                    problem = f"digits.{model}: {name} has answer_token {subject.answer_token}"
                    raise ValueError(f"{problem}, but it is listed for {token}")
                if subject.source != digits.source:
                    problem = f"digits.{model}.source is {digits.source!r}"
                    raise ValueError(f"{problem}, and that of {name} is {subject.source!r}")
        return self

    @model_validator(mode="after")
    def _check_merged(self) -> Self:
        both = sorted(self.stored.keys() & self.with_mediation.keys())
        if both:
            raise ValueError(f"{both[0]} is in stored and elsewhere; a model has one entry")
        for merged, sections in MERGED.items():
            entries: Subjects = {}
            for section in sections:
                entries |= getattr(self, section)
            if getattr(self, merged) != entries:
                anchors = ", *".join(sections)
                raise ValueError(f"{merged} must be `{merged}: {{<<: [*{anchors}]}}`")
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        tasks = self.mediation.pairs_per_template
        for name, sizes in self.sizes.items():
            if name not in self.with_mediation:
                models = _listed(self.with_mediation)
                raise ValueError(f"sizes names {name!r}; the models with experiments are {models}")
            unknown = sorted((sizes.pairs_per_template or {}).keys() - tasks.keys())
            if unknown:
                problem = f"sizes.{name}.pairs_per_template names {unknown[0]!r}"
                raise ValueError(f"{problem}; the tasks are {_listed(tasks)}")
        entries: dict[str, Section] = {**self.known, **self.sizes}
        raw = {name: entry.model_dump(exclude_unset=True) for name, entry in entries.items()}
        if self.sized != raw:
            sections = "*sizes, *subjects, *checkpoints, *finetuned, *stored"
            raise ValueError(f"sized must be `sized: {{<<: [{sections}]}}`")
        return self


def main() -> None:
    """Check all settings, then write data/settings.txt."""
    raw = read()
    check(Params, raw)
    # these raise ParamsError for a wrong environment variable
    environment.workers()
    environment.gpus()
    twice = repeated(raw)
    if twice:
        file = place(twice.partition(".")[0])
        raise ParamsError(f"{file} lists a value twice: {twice}; remove one of them")
    with replacing(Path("data/settings.txt")) as partial:
        partial.write_text("params.yaml holds only what is allowed\n", encoding="utf-8")


if __name__ == "__main__":
    main()
