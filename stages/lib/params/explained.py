"""Settings of the descriptions of neurons' maps."""

from stages.lib.params.sections import Count, Section, Threads


class Spectra(Section):
    components: Count
    neurons_at_once: Count


class Explained(Section):
    threads: Threads
