"""What malloc keeps of freed memory is returned."""

import ctypes
import threading

import pytest

from ragboost.proxy.memory import bounded_malloc
from tests.eventually import eventually

_BLOCK = 4000  # bytes; above what Python allocates by itself


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_memory_below_the_top_of_the_heap_is_returned() -> None:
    blocks = [bytearray(b"x" * _BLOCK) for _ in range(20_000)]
    top = bytearray(b"x" * _BLOCK)  # without it, malloc returns all of them by itself
    before = resident_bytes()
    del blocks
    with bounded_malloc(trim_every_s=0.01):
        eventually(lambda: resident_bytes() < before - 40_000_000)
    assert len(top) == _BLOCK
    assert "malloc-trim" not in [thread.name for thread in threading.enumerate()]
