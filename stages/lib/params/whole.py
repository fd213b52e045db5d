"""The whole of params.yaml, for what must be sure of all of it before any work starts."""

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
from stages.lib.params.subjects import Dump, Runs, Subjects
from stages.lib.params.training import Train


class Params(Section):
    """Every section of params.yaml, and no other."""

    cells: Cells
    facts: Facts
    tasks: Tasks
    train: Train
    subjects: Subjects
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
