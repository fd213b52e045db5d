"""Compile functions with numba. The one importer of numba."""

import hashlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher


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

    def _index_key(self, sig: Any, codegen: Any) -> tuple:
        """Return the key of a compiled form.

        numba's own key knows of no other functions, but the form contains those that it calls.
        """
        parts = hashlib.sha256("\n".join(_meaning(self._py_func, {self._py_func})).encode())
        return *super()._index_key(sig, codegen), parts.hexdigest()


def _meaning(function: Any, known: set) -> Iterator[str]:
    """Yield what a function computes: code and constants of it and of those that it calls.

    known: functions that are not repeated.
    """
    codes = [function.__code__]
    for code in codes:  # which grows
        yield code.co_code.hex()
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                codes.append(constant)
            else:
                yield repr(constant)
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, int | float | tuple):
                yield repr(value)
            if isinstance(value, Dispatcher) and value.py_func not in known:
                known.add(value.py_func)
                yield repr(value.targetoptions)
                yield from _meaning(value.py_func, known)


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
