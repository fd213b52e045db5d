"""Settings of the descriptions of neurons' maps."""

from stages.lib.params.sections import Count, Section


class Spectra(Section):
    components: Count
    neurons_at_once: Count
