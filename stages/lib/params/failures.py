"""Settings of what is asked about the cells that a subject fails on."""

from stages.lib.params.sections import Count, Positive, Section


class Failures(Section):
    neurons_at_once: Count


class FailureTests(Section):
    normal: Positive


class FailureInputs(Section):
    span: Count
