"""A task computes only while its owner waits, and ends when it is cancelled."""

import threading

import pytest
import torch

from ragboost.chunk_cache.model.pace import Pace
from ragboost.engine.runtime.chunk_task import ChunkTask
from ragboost.errors import ChunkCacheError


def count(pace: Pace, seen: list[int]) -> int:
    seen.extend(len(piece) for piece in pace.pieces(torch.arange(10)))
    return len(seen)


def test_a_task_computes_one_piece_each_time_it_is_advanced() -> None:
    seen: list[int] = []
    task = ChunkTask(lambda pace: count(pace, seen), name="counting")
    assert not task.advance(rows=4)
    assert seen == [], "it pauses before its first piece"
    assert not task.advance(rows=4)
    assert not task.advance(rows=1)
    assert task.result is None
    assert task.advance(rows=100)
    assert (seen, task.result) == ([4, 1, 5], 3)


@pytest.mark.parametrize("num_advances", [0, 1, 2])
def test_a_cancelled_task_ends_where_it_pauses_and_leaves_no_thread(num_advances: int) -> None:
    seen: list[int] = []
    task = ChunkTask(lambda pace: count(pace, seen), name="cancelled")
    for _ in range(num_advances):
        task.advance(rows=3)
    task.cancel()
    task.cancel()
    assert len(seen) == max(0, num_advances - 1)
    assert task.result is None
    assert "cancelled" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("error", [ChunkCacheError, RuntimeError, MemoryError])
def test_an_error_of_the_computation_is_kept(error: type[Exception]) -> None:
    def fail(_pace: Pace) -> int:
        raise error("no such layer")

    task: ChunkTask[int] = ChunkTask(fail, name="failing")
    assert task.advance(rows=1)
    assert str(task.error) == "no such layer"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_reaches_the_owner() -> None:
    def fail(_pace: Pace) -> int:
        raise AssertionError("a bug")

    with pytest.raises(RuntimeError, match="buggy failed"):
        ChunkTask(fail, name="buggy").advance(rows=1)
