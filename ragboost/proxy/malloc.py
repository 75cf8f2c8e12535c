"""Bound what glibc's malloc keeps of freed memory. Does nothing with other C libraries."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of <malloc.h>
_TRIM_EVERY_S = 60.0


@contextmanager
def bounded_malloc(*, trim_every_s: float = _TRIM_EVERY_S) -> Iterator[None]:
    """Let malloc keep up to 64 MB of freed memory for the next large bodies, in one heap, and
    return what is free within the heap once a minute. For one process, once.

    Memory returned to the kernel is zeroed again on reuse, a fifth of the cost of a 400 KB request.
    With a heap per thread, each of the threads for bodies, stores and event streams would keep its
    own peak: new threads follow every restart of an engine. The GIL leaves little to contend for.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, 4 * 1024 * 1024)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)
    is_over = threading.Event()

    def trim() -> None:
        while not is_over.wait(trim_every_s):
            libc.malloc_trim(ctypes.c_size_t(0))  # without the GIL

    thread = threading.Thread(target=trim, name="malloc-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
