"""How this process keeps memory that tensors give back."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them, of glibc's malloc.h


def keep_freed() -> None:
    """Tells glibc not to return freed memory to the system.

    By default each large tensor is a mapping of its own: the kernel clears every page of it again and again, a fifth of the
    time of a restarted run on a CPU. Peak memory stays what it is. Elsewhere than on Linux with glibc this does nothing.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        library.mallopt(MMAP_THRESHOLD, 2**30)
