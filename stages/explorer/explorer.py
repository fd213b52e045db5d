"""What every view works with: a project, the models that are loaded of it, and work under way."""

import threading
from contextlib import suppress
from copy import copy

from stages.explorer.answers.silence import GridJob, Silencing
from stages.explorer.models import Models
from stages.explorer.project import Project


class Explorer:
    """A project and the models that are loaded of it, as one tab of a browser sees them."""

    def __init__(self, project: Project):
        self.project, self.models = project, Models(project)
        self.jobs: dict[Silencing, GridJob] = {}  # work over whole grids, of all tabs
        self.changing = threading.RLock()  # who changes one of these holds it
        self.tab = ""

    def refresh(self) -> None:
        """Takes the tables as they are now, where they have changed on disk, as by a `dvc repro`."""
        with self.changing, suppress(OSError):  # files that come and go just now; whoever asks next looks again
            if not self.project.is_current():
                self.project = self.models.project = Project(self.project.data)

    def of(self, tab: str) -> "Explorer":
        """The same for another tab: it shares models and work, and ends none that others look at."""
        other = copy(self)
        other.tab = tab
        return other

    def known(self) -> str:
        """What has been found so far of what this tab works on, and on which tables."""
        return f"{self.project.seen} {self.models.names()} {[(job.share(), job.done) for job in self._own()]}"

    def settled(self, known: str) -> bool:
        """Whether a page that was made when so much was known will stay as it is."""
        working = self.models.loading() or any(not job.done for job in self._own())
        return not working and self.known() == known  # in this order: what ends in between shows

    def _own(self) -> list[GridJob]:
        return [job for job in list(self.jobs.values()) if self.tab in job.tabs]
