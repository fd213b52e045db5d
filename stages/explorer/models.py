"""Models are loaded beside the page, when something first asks for one; until then there are tables to look at."""

import threading
from typing import TYPE_CHECKING

from stages.explorer.project import ExplorerError, Project

if TYPE_CHECKING:
    from stages.explorer.live import Live

MOST = 2  # models held at once


class Models:
    """The models of a project's subjects; one thread at a time works with them (`lock`)."""

    def __init__(self, project: Project):
        self.project, self.lock = project, threading.RLock()
        self._found: dict[str, Live | ExplorerError] = {}
        self._loading: dict[str, threading.Thread] = {}

    def ready(self, name: str) -> "Live | None":
        """A subject's model; None while it is being loaded, which this starts. Raises ExplorerError where that fails."""
        with self.lock:
            found = self._found.get(name)
            if isinstance(found, ExplorerError):
                raise found
            if found is None and name not in self._loading:
                self._loading[name] = threading.Thread(target=self._load, args=(name,), daemon=True)
                self._loading[name].start()
            return found

    def wait(self, name: str) -> "Live":
        """The same, once it is loaded."""
        while (found := self.ready(name)) is None:
            self._loading[name].join()
        return found

    def _load(self, name: str) -> None:
        from stages.explorer.live import Live  # only here: torch takes seconds to import

        try:
            found: Live | ExplorerError = Live(self.project, name)
        except ExplorerError as error:
            found = error
        except Exception as error:  # whatever a model's own code raises: the page says it, and goes on
            found = ExplorerError(f"the model of {name} cannot be run: {type(error).__name__}: {error}")
        with self.lock:
            kept = [one for one in self._found if one != name]
            for one in kept[: max(0, len(kept) + 1 - MOST)]:
                del self._found[one]
                self._loading.pop(one, None)
            self._found[name] = found

    def names(self) -> list[str]:
        """Those that are loaded, or cannot be."""
        return sorted(self._found)

    def loading(self) -> bool:
        """Whether a model is under way."""
        return any(thread.is_alive() for name, thread in self._loading.items() if name not in self._found)
