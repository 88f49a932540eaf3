"""How much memory the system has given this process, Python and torch included."""

import ctypes
import gc

import psutil


def resident_bytes() -> int:
    """The bytes of memory that the system has given this process (RSS), after all that is free went back."""
    gc.collect()
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):  # glibc keeps what is freed, for later
        c_library.malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
