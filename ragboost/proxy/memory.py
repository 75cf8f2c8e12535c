"""Bound a process's memory and the pauses of its garbage collector; once per process."""

import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of <malloc.h>
_MADV_COLLAPSE = 25  # of <linux/mman.h>, since Linux 6.1
_HUGE_PAGE = 2 * 1024 * 1024
_TRIM_EVERY_S = 60.0
# New objects before a collection: of the youngest; then, with the two values below, about 40,000
# before a full one. With the default of 700, collections take 3 % of a request's time.
_THRESHOLDS = 10_000, 2, 0
_FROZEN_PASSES = 64  # full collections of new objects for each that looks at everything


@contextmanager
def short_collections() -> Iterator[None]:
    """Collect cyclic garbage in short pauses, however much a process remembers.

    Requests leave hardly any cycles, but an index of 100,000 nodes takes a full collection 100 ms.
    So what has survived one is frozen: later ones do not look at it. Frozen objects are freed as
    all others when nothing refers to them; those that become garbage in a cycle wait for the next
    of the rare collections that look at everything. In the end everything is as it was before.
    """
    thresholds, collections = gc.get_threshold(), _FrozenCollections()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(collections.watch)
    try:
        yield
    finally:
        gc.callbacks.remove(collections.watch)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _FrozenCollections:
    def __init__(self) -> None:
        self._num_passes = 0

    def watch(self, phase: str, info: dict[str, Any]) -> None:
        """Note that a collection begins or has ended."""
        if phase != "stop" or info["generation"] != 2:
            return
        self._num_passes += 1
        if self._num_passes % (_FROZEN_PASSES + 1) == _FROZEN_PASSES:
            gc.unfreeze()  # the next full collection looks at everything
        else:
            gc.freeze()


@contextmanager
def bounded_malloc(*, trim_every_s: float = _TRIM_EVERY_S) -> Iterator[None]:
    """Let malloc keep up to 64 MB of freed memory for the next large bodies, in one heap, and
    return what is free within the heap once a minute. What is resident is held in huge pages: a
    request finds its code and data spread over 100 MB. For one process, once.

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
        use_huge_pages(libc)
        while not is_over.wait(trim_every_s):
            libc.malloc_trim(ctypes.c_size_t(0))  # without the GIL
            use_huge_pages(libc)

    thread = threading.Thread(target=trim, name="malloc-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def use_huge_pages(libc: ctypes.CDLL) -> int:
    """Ask the kernel to hold memory of this process in pages of 2 MB where all of it is resident,
    so that none is added; return their number. 0 where the kernel does not know how."""
    if mmap.PAGESIZE != 4096 or not os.path.exists("/proc/self/maps"):
        return 0
    resident, num_pages = (ctypes.c_ubyte * (_HUGE_PAGE // mmap.PAGESIZE))(), 0
    everything = b"\1" * len(resident)
    with open("/proc/self/maps") as file:
        regions = [line.split() for line in file]
    for region in regions:
        span, mode, inode = region[0], region[1], region[4]
        if not mode.startswith("rw") or inode != "0":  # a file
            continue
        start, stop = (int(address, 16) for address in span.split("-"))
        first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        for address in range(first, stop - _HUGE_PAGE + 1, _HUGE_PAGE):
            place, size = ctypes.c_void_p(address), ctypes.c_size_t(_HUGE_PAGE)
            if libc.mincore(place, size, resident) or bytes(resident) != everything:
                continue
            num_pages += libc.madvise(place, size, _MADV_COLLAPSE) == 0
    return num_pages
