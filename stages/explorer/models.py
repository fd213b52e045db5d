"""Load models in the background, when a page first needs them; until then it shows the tables.

Models are not loaded earlier, because importing torch keeps the process busy for seconds.
"""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.explorer.project import ExplorerError, Project

if TYPE_CHECKING:
    from stages.explorer.live import Live

MOST = 2  # models held at once


@dataclass(frozen=True)
class Loaded:
    """A loaded model, or the error that loading it raised; made_of: see Project.made_of."""

    made_of: int
    model: "Live | ExplorerError"


class Models:
    """The models of a project. A thread that works with a model holds `lock`."""

    def __init__(self, project: Project):
        self.project, self.lock = project, threading.RLock()
        self._loaded: dict[str, Loaded] = {}
        self._loading: dict[str, threading.Thread] = {}
        self._requested: set[str] = set()

    def ready(self, name: str) -> "Live | None":
        """Return a model, or None before it is loaded, which `start` begins.

        A model whose files have changed is loaded again. Raises ExplorerError if loading failed.
        """
        with self.lock:
            if self._is_outdated(name):
                self._forget(name)
            if name not in self._loaded:
                if name not in self._loading:
                    self._requested.add(name)
                return None
            model = self._loaded[name].model
            if isinstance(model, ExplorerError):
                raise model
            model.project = self.project
            return model

    def start(self) -> None:
        """Begin to load the requested models."""
        with self.lock:
            for name in self._requested - self._loading.keys():
                thread = threading.Thread(target=self._load, args=(name,), daemon=True)
                self._loading[name] = thread
                thread.start()
            self._requested.clear()

    def wait(self, name: str) -> "Live":
        """Return a model once it is loaded. Raises ExplorerError if loading failed."""
        model = self.ready(name)
        while model is None:
            self.start()
            self._loading[name].join()
            model = self.ready(name)
        return model

    def names(self) -> list[str]:
        """Return the models that are loaded or failed to load."""
        return sorted(self._loaded)

    def loading(self) -> bool:
        """Return whether any model is requested or being loaded."""
        pending = [self._loading[name] for name in self._loading.keys() - self._loaded.keys()]
        return bool(self._requested) or any(map(threading.Thread.is_alive, pending))

    def _load(self, name: str) -> None:
        from stages.explorer.live import Live  # imported late: torch takes seconds

        project = self.project
        made_of = project.made_of(name)  # before it is loaded, so that no change is missed
        try:
            model: Live | ExplorerError = Live(project, name)
        except ExplorerError as error:
            model = error
        except Exception as error:  # whatever a model's own code raises: the page shows it
            problem = f"{type(error).__name__}: {error}"
            model = ExplorerError(f"the model of {name} cannot be run: {problem}")
        with self.lock:
            others = [other for other in self._loaded if other != name]
            for other in others[: max(0, len(others) + 1 - MOST)]:
                self._forget(other)
            self._loaded[name] = Loaded(made_of, model)

    def _is_outdated(self, name: str) -> bool:
        entry = self._loaded.get(name)
        return entry is not None and entry.made_of != self.project.made_of(name)

    def _forget(self, name: str) -> None:
        del self._loaded[name]
        self._loading.pop(name, None)
