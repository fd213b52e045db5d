"""The whole of params.yaml, for what must be sure of all of it before any work starts."""

from stages.lib.params.corpus import Cells, Facts, Tasks
from stages.lib.params.figures import Figures
from stages.lib.params.sections import Section
from stages.lib.params.subjects import Dump, Subjects
from stages.lib.params.training import Train


class Params(Section):
    """Every section of params.yaml, and no other."""

    cells: Cells
    facts: Facts
    tasks: Tasks
    train: Train
    subjects: Subjects
    dump: Dump
    figures: Figures
