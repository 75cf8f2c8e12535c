"""Collect cyclic garbage in short pauses, however much a process remembers.

Requests leave hardly any cycles, but an index of 100,000 nodes takes a full collection 100 ms. So
what has survived one is frozen: later ones do not look at it. Frozen objects are freed as all
others when nothing refers to them; those that become garbage in a cycle wait for the next of the
rare collections that look at everything. Does not know what is remembered.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# New objects before a collection: of the youngest; then, with the two values below, about 40,000
# before a full one. With the default of 700, collections take 3 % of a request's time.
_THRESHOLDS = 10_000, 2, 0
_FROZEN_PASSES = 64  # full collections of new objects for each that looks at everything


@contextmanager
def short_collections() -> Iterator[None]:
    """Freeze all objects that exist, and then what survives each full collection.

    For one process, once; in the end everything is as it was before.
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
