"""Check what two workers of an offline vLLM load from disk, in vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import tempfile
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from tests.engines.chunks_vllm import report, scheduler_of
from tests.engines.chunks_vllm_ranks import two_ranks
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import Prompts

ORDER = [2, 0, 1]


def write_and_forget(worker: Any) -> None:
    """Leave a rank's chunks on disk only, and loading worth the wait; runs in all."""
    store = get_kv_transfer_group().filler.library.store
    store.flush()
    store.forget()
    store.speeds._compute_s = 1.0  # a token
    store.speeds._loads.clear()


def forget(engine: ReuseLLM) -> None:
    engine.llm.collective_rpc(write_and_forget)
    scheduler_of(engine)._library.store.clear()
    engine.llm.reset_prefix_cache()


def main() -> None:
    prompts = Prompts(system=40, chunks=3, size=120, question=23)
    tokens, positions = prompts.prompt(ORDER)
    with tempfile.TemporaryDirectory() as folder:
        engine = two_ranks(directory=folder)
        engine.learn(prompts)
        engine.llm.reset_prefix_cache()
        stale = engine.logprobs(tokens, positions, ratio=0.0)
        forget(engine)  # now a request waits for its chunks
        told = report(engine.run(tokens, positions, ratio=0.0))
        forget(engine)
        loaded = engine.logprobs(tokens, positions, ratio=0.0)
    print(json.dumps({"told": told, "loaded_difference": float((loaded - stale).abs().max())}))


if __name__ == "__main__":
    main()
