"""Compile functions with numba. The one importer of numba."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function, which then runs without Python's global lock.

    options: of numba.njit. numba keeps the compiled function beside the source or in the user's
    cache; if neither can be written, as in a read-only checkout, every process compiles it again.
    """

    def compile_it(function: Callable) -> Callable:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # numba: cannot cache function: no locator available
            return njit(nogil=True, **options)(function)

    return compile_it
