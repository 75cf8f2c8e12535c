"""Ranks of a model sum, agree and compare; what fails on one fails on all."""

import json
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from ragboost.chunk_cache.model.ranks import ONE_RANK, GroupRanks, together
from ragboost.errors import ChunkCacheError

SIZE = 2


def run_rank(rank: int, folder: str) -> None:
    """Ask every question in one process of two, and write down the answers."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE
    )
    ranks = GroupRanks(distributed.group.WORLD)
    values = torch.tensor([rank + 1.0, 10.0])

    def work() -> str:
        if rank == 1:
            raise MemoryError
        return "fine"

    try:
        outcome = together(ranks, work)
    except (ChunkCacheError, MemoryError) as error:
        outcome = type(error).__name__
    told = {
        "sum": ranks.sum(values).tolist(),
        "values": values.tolist(),
        "agree": [ranks.agree(True), ranks.agree(rank == 0)],
        "same": [ranks.same(("plan", 3)), ranks.same(("plan", rank))],
        "together": [outcome, together(ranks, lambda: rank)],
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


def test_two_processes_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(run_rank, args=(str(tmp_path),), nprocs=SIZE)  # type: ignore[no-untyped-call]
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(SIZE)]

    for rank in range(SIZE):
        assert told[rank]["sum"] == [3.0, 20.0]
        assert told[rank]["values"] == [rank + 1.0, 10.0]  # unchanged
        assert told[rank]["agree"] == [True, False]
        assert told[rank]["same"] == [True, False]
        assert told[rank]["together"][1] == rank
    assert [told[rank]["together"][0] for rank in range(SIZE)] == ["ChunkCacheError", "MemoryError"]


def test_one_process_agrees_with_itself() -> None:
    values = torch.ones(3)

    assert ONE_RANK.sum(values) is values
    assert ONE_RANK.same("x")
    assert together(ONE_RANK, lambda: 3) == 3
    with pytest.raises(MemoryError):
        together(ONE_RANK, lambda: (_ for _ in ()).throw(MemoryError))
