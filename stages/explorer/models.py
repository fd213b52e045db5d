"""Models are loaded behind the page that first asks for one, once it is there; until then there are tables to look at.

Not before: to import torch takes seconds, in which a process hardly gets to anything else.
"""

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
        self._found: dict[str, tuple[int, Live | ExplorerError]] = {}  # beside what each was made of (see Project.made_of)
        self._loading: dict[str, threading.Thread] = {}
        self._asked: set[str] = set()

    def ready(self, name: str) -> "Live | None":
        """A subject's model; None before it is loaded, which `start` begins. Raises ExplorerError where that fails.

        One whose files have changed since is loaded anew.
        """
        with self.lock:
            made_of, found = self._found.get(name, (None, None))
            if found and made_of != self.project.made_of(name):
                self._forget(name)
                found = None
            if isinstance(found, ExplorerError):
                raise found
            if found:
                found.project = self.project
            elif name not in self._loading:
                self._asked.add(name)
            return found

    def start(self) -> None:
        """Begins to load what has been asked for."""
        with self.lock:
            for name in self._asked - self._loading.keys():
                self._loading[name] = threading.Thread(target=self._load, args=(name,), daemon=True)
                self._loading[name].start()
            self._asked.clear()

    def wait(self, name: str) -> "Live":
        """A subject's model, once it is loaded. Raises ExplorerError where that fails."""
        while (found := self.ready(name)) is None:
            self.start()
            self._loading[name].join()
        return found

    def _load(self, name: str) -> None:
        from stages.explorer.live import Live  # only here: torch takes seconds to import

        project = self.project
        made_of = project.made_of(name)  # before it is loaded, so that no change is missed
        try:
            found: Live | ExplorerError = Live(project, name)
        except ExplorerError as error:
            found = error
        except Exception as error:  # whatever a model's own code raises: the page says it, and goes on
            found = ExplorerError(f"the model of {name} cannot be run: {type(error).__name__}: {error}")
        with self.lock:
            kept = [one for one in self._found if one != name]
            for one in kept[: max(0, len(kept) + 1 - MOST)]:
                self._forget(one)
            self._found[name] = made_of, found

    def _forget(self, name: str) -> None:
        del self._found[name]
        self._loading.pop(name, None)

    def names(self) -> list[str]:
        """Those that are loaded, or cannot be."""
        return sorted(self._found)

    def loading(self) -> bool:
        """Whether a model is asked for, or under way."""
        return bool(self._asked) or any(thread.is_alive() for name, thread in self._loading.items() if name not in self._found)
