"""Functions that numba compiles. The one importer of numba."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """A decorator that compiles a function, which then runs without Python's global lock. options: of numba.njit.

    What is compiled is kept beside the source, or in the user's own cache; where neither can be
    written, as in a checkout that is only to be read, it is compiled again in every process.
    """

    def compile_it(function: Callable) -> Callable:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # numba: cannot cache function: no locator available
            return njit(nogil=True, **options)(function)

    return compile_it
