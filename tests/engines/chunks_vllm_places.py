"""Check that a disk that hangs or is slow stops nobody in an offline vLLM, in vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ragboost.chunk_cache.store import disk
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from tests.engines.chunks_vllm import report, scheduler_of
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import SMALL, Prompts

CHUNK_S = 0.2
RUNNING = 48  # tokens of the request that runs meanwhile


class Gate:
    """Lets a disk answer, or not; notes the threads that read."""

    def __init__(self) -> None:
        self.is_open, self.threads, self.num_reading = threading.Event(), set[str](), 0
        self.is_open.set()

    @contextmanager
    def before_reads(self, *, seconds: float = 0.0) -> Iterator[None]:
        pause, decode = threading.Event(), vars(disk)["decode"]

        def slow_decode(content: bytearray, key: str) -> ChunkKV:
            self.threads.add(threading.current_thread().name)
            self.num_reading += 1
            pause.wait(seconds)  # a slow disk
            self.is_open.wait()
            self.num_reading -= 1
            chunk: ChunkKV = decode(content, key)
            return chunk

        with mock.patch.object(disk, "decode", slow_decode):
            yield


def run(
    engine: ReuseLLM, prompts: Prompts, gate: Gate, *, is_in_memory: bool = False
) -> dict[str, Any]:
    """Run one request while another one's chunks are read, unless they are in memory; count the
    steps of the first, and measure the longest: its processor time in this thread, and its time."""
    core, store = engine.llm.llm_engine, scheduler_of(engine)._library.store
    engine.llm.reset_prefix_cache()
    if not is_in_memory:
        store.forget()
    store.speeds._compute_s = 1.0  # a token: loading is worth it, and waiting
    store.speeds._loads.clear()
    tokens, positions = prompts.prompt([2, 0, 1])
    core.add_request(
        "running", {"prompt_token_ids": prompts.tokens(64)}, engine.sampling(max_tokens=RUNNING)
    )
    core.step()
    core.add_request("reusing", {"prompt_token_ids": tokens}, engine.sampling(positions, ratio=0.0))
    ended: dict[str, Any] = {}
    during = 0  # steps that returned while a read was under way
    gap = longest_gap = 0  # steps from a token of the running request to the next one
    cpu_seconds, seconds = [], []  # of each step
    while core.has_unfinished_requests():
        began = time.thread_time(), time.perf_counter()
        outputs = core.step()
        cpu_seconds.append(time.thread_time() - began[0])
        seconds.append(time.perf_counter() - began[1])
        during += gate.num_reading > 0
        gap += 1
        for output in outputs:
            if output.request_id.startswith("running"):
                longest_gap, gap = max(longest_gap, gap), 0
            if output.finished:
                ended[output.request_id.split("-")[0]] = output
        if "running" in ended:
            gate.is_open.set()
    return {
        "steps_during_reads": during,
        "longest_gap_steps": longest_gap,
        "longest_step_cpu_s": max(cpu_seconds),
        "longest_step_s": max(seconds),
        "told": report(ended["reusing"]),
    }


def check_aborted(engine: ReuseLLM, prompts: Prompts, gate: Gate) -> dict[str, Any]:
    """A request that is aborted while its chunks are on their way leaves nothing behind."""
    scheduler = scheduler_of(engine)
    core, store = engine.llm.llm_engine, scheduler._library.store
    engine.llm.reset_prefix_cache()
    store.forget()
    store.speeds._compute_s = 1.0
    store.speeds._loads.clear()
    tokens, positions = prompts.prompt([1, 0])
    name = core.add_request(
        "aborted", {"prompt_token_ids": tokens}, engine.sampling(positions, ratio=0.0)
    )
    for _ in range(3):
        core.step()
    was_tracked = len(scheduler._tracked)
    core.abort_request([name or "aborted"], internal=name is not None)
    core.step()
    left = [len(scheduler._tracked), len(scheduler._plans), len(scheduler._salts)]
    gate.is_open.set()
    after = engine.run(tokens, positions, ratio=0.0)
    return {
        "was_tracked": was_tracked,
        "left": left,
        "is_idle": not core.has_unfinished_requests(),
        "after": report(after),
    }


def make_engine(folder: str, prompts: Prompts) -> ReuseLLM:
    """Return an engine that has three chunks on disk."""
    engine = ReuseLLM(
        SMALL,
        blocks=75,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        settings={"directory": folder},
    )
    engine.run(*prompts.prompt([0, 1, 2]))
    store = scheduler_of(engine)._library.store
    store.flush()
    assert isinstance(store.disk, DiskTier)
    assert len(store.disk) == 3
    return engine


def make_prompts() -> Prompts:
    return Prompts(system=40, chunks=3, size=120, question=23)


def main() -> None:
    gate, told = Gate(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder, gate.before_reads():
        prompts = make_prompts()
        engine = make_engine(folder, prompts)
        told["memory"] = run(engine, prompts, gate, is_in_memory=True)
        for name, check in (("hung", run), ("aborted", check_aborted)):
            gate.is_open.clear()
            told[name] = check(engine, prompts, gate)
        with gate.before_reads(seconds=CHUNK_S):
            told["slow"] = run(engine, prompts, gate)
        told["threads"] = sorted(gate.threads)
    print(json.dumps(told))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
