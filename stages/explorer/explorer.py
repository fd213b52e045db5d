"""What every view works with: a project, the models that are loaded of it, and work under way."""

from stages.explorer.answers.silence import GridJob, Silencing
from stages.explorer.models import Models
from stages.explorer.project import Project


class Explorer:
    """A project and the models that are loaded of it."""

    def __init__(self, project: Project):
        self.project, self.models = project, Models(project)
        self.jobs: dict[Silencing, GridJob] = {}  # work under way over whole grids

    def known(self) -> str:
        """What has been found so far of what is worked on."""
        return f"{self.models.names()} {[(job.share(), job.done) for job in self.jobs.values()]}"

    def settled(self, known: str) -> bool:
        """Whether a page that was made when so much was known will stay as it is."""
        working = self.models.loading() or any(not job.done for job in self.jobs.values())
        return not working and self.known() == known  # in this order: what ends in between shows
