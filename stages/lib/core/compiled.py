"""Compile functions with numba. The one importer of numba."""

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class CompiledFiles(FunctionCache):
    """The compiled forms of a function that numba keeps in files."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the form for these types, or None, which compiles it.

        Files may name a class of an argument that was renamed since, in another module than the
        function's. numba would end with an error. Without these files it compiles again.
        """
        try:
            return super().load_overload(sig, target_context)
        except (AttributeError, ImportError):
            self.flush()
            return None


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function, which then runs without Python's global lock.

    options: of numba.njit. numba keeps the compiled function beside the source or in the user's
    cache; if neither can be written, as in a read-only checkout, every process compiles it again.
    """

    def compile_it(function: Callable) -> Callable:
        dispatcher = njit(nogil=True, **options)(function)
        try:
            dispatcher._cache = CompiledFiles(function)
        except RuntimeError:  # numba: cannot cache function: no locator available
            return dispatcher
        return dispatcher

    return compile_it
