"""A job goes on only while its owner waits, and ends when it is cancelled."""

import threading

import pytest
import torch

from ragboost.chunk_cache.pace import Pace
from ragboost.engine.runtime.chunk_task import ChunkTask
from ragboost.errors import ChunkCacheError


def count(pace: Pace, seen: list[int]) -> int:
    seen.extend(len(piece) for piece in pace.pieces(torch.arange(10)))
    return len(seen)


def test_a_job_computes_one_piece_each_time_it_is_advanced() -> None:
    seen: list[int] = []
    job = ChunkTask(lambda pace: count(pace, seen), name="counting")
    assert not job.advance(rows=4)
    assert seen == [], "it rests before its first piece"
    assert not job.advance(rows=4)
    assert not job.advance(rows=1)
    assert job.result is None
    assert job.advance(rows=100)
    assert (seen, job.result) == ([4, 1, 5], 3)


@pytest.mark.parametrize("num_advances", [0, 1, 2])
def test_a_cancelled_job_ends_where_it_rests_and_leaves_no_thread(num_advances: int) -> None:
    seen: list[int] = []
    job = ChunkTask(lambda pace: count(pace, seen), name="cancelled")
    for _ in range(num_advances):
        job.advance(rows=3)
    job.cancel()
    job.cancel()
    assert len(seen) == max(0, num_advances - 1)
    assert job.result is None
    assert "cancelled" not in [thread.name for thread in threading.enumerate()]


def test_an_error_of_ours_is_kept() -> None:
    def fail(_pace: Pace) -> int:
        raise ChunkCacheError("no such layer")

    job: ChunkTask[int] = ChunkTask(fail, name="failing")
    assert job.advance(rows=1)
    assert str(job.error) == "no such layer"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_reaches_the_owner() -> None:
    def fail(_pace: Pace) -> int:
        raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="buggy failed"):
        ChunkTask(fail, name="buggy").advance(rows=1)
