"""Hold what all views share: the project, its loaded models and the work in progress."""

import threading
from contextlib import suppress
from copy import copy

from stages.explorer.jobs import Ablation, GridJob
from stages.explorer.models import Models
from stages.explorer.project import Project


class Explorer:
    """A project and its loaded models, as one tab of a browser uses them."""

    def __init__(self, project: Project):
        self.project, self.models = project, Models(project)
        self.jobs: dict[Ablation, GridJob] = {}  # work over whole grids, for all tabs
        self.changing = threading.RLock()  # held while any of these change
        self.tab = ""

    def refresh(self) -> None:
        """Open the tables again if they have changed on disk, for example after a `dvc repro`."""
        # an OSError means that files change right now: the next request looks again
        with self.changing, suppress(OSError):
            if not self.project.is_current():
                self.project = self.models.project = Project(self.project.data)

    def for_tab(self, tab: str) -> "Explorer":
        """Return the explorer for another tab.

        Tabs share models and work; no tab ends work that another tab looks at.
        """
        other = copy(self)
        other.tab = tab
        return other

    def known(self) -> str:
        """Return a text that changes with the tables, the loaded models or this tab's work."""
        progress = [(job.share(), job.done) for job in self._own()]
        return f"{self.project.seen} {self.models.names()} {progress}"

    def settled(self, known: str) -> bool:
        """Return whether a page that was made when `known` was current stays as it is."""
        working = self.models.loading() or not all(job.done for job in self._own())
        return not working and self.known() == known  # in this order, so that no change is missed

    def _own(self) -> list[GridJob]:
        return [job for job in list(self.jobs.values()) if self.tab in job.tabs]
