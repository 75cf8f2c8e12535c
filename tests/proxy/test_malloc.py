"""What malloc keeps of freed memory is returned.

In processes of their own: here, other tests' threads allocate and malloc keeps their memory.
"""

import ctypes
import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from ragboost.proxy.memory import bounded_malloc, use_huge_pages
from tests.eventually import eventually

_BLOCK = 4000  # bytes; above what Python allocates by itself


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def alone(check: Callable[[], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(check).result()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_memory_below_the_top_of_the_heap_is_returned() -> None:
    alone(_assert_freed_memory_is_returned)


def _assert_freed_memory_is_returned() -> None:
    blocks = [bytearray(b"x" * _BLOCK) for _ in range(20_000)]
    top = bytearray(b"x" * _BLOCK)  # without it, malloc returns all of them by itself
    before = resident_bytes()
    del blocks
    with bounded_malloc(trim_every_s=0.01):
        eventually(lambda: resident_bytes() < before - 40_000_000)
    assert len(top) == _BLOCK
    assert "malloc-trim" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux")
def test_huge_pages_change_no_byte_and_add_none() -> None:
    alone(_assert_huge_pages_change_no_byte_and_add_none)


def _assert_huge_pages_change_no_byte_and_add_none() -> None:
    block = bytearray(bytes(range(256)) * 65536)  # 16 MB
    del block[::5]
    digest = hashlib.sha256(block).digest()  # without a copy, which malloc would keep
    before = resident_bytes()

    num_pages = use_huge_pages(ctypes.CDLL(None))

    assert resident_bytes() < before + 8_000_000
    assert hashlib.sha256(block).digest() == digest
    with open("/proc/self/smaps_rollup") as file:
        huge = [int(line.split()[1]) for line in file if line.startswith("AnonHugePages:")]
    assert huge[0] * 1024 >= num_pages * 2 * 1024 * 1024 * 0.9  # 0 where the kernel has none left
