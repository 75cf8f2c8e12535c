"""Check what two workers of an offline vLLM load from disk, in vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import tempfile
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from ragboost.chunk_cache.http.announcements import Announcer
from tests.engines.chunks_vllm import report, scheduler_of
from tests.engines.chunks_vllm_ranks import two_ranks
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import Prompts

ORDER = [2, 0, 1]
RUNNING = 800  # tokens of the request that runs while chunks are loaded
MAX_STEPS = 5_000


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


def check_announced(engine: ReuseLLM, prompts: Prompts, announcer: Announcer) -> dict[str, Any]:
    """What is announced while another request runs is in memory before its request comes."""
    forget(engine)
    core, library = engine.llm.llm_engine, scheduler_of(engine)._library
    tokens, positions = prompts.prompt(ORDER)
    chunks = [tokens[start:stop] for start, stop in positions]
    announcer.send(chunks, tenant="", namespace=[None])
    num_listed = 0
    for _ in range(MAX_STEPS):
        if not core.has_unfinished_requests():
            running = {"prompt_token_ids": prompts.tokens(64)}
            core.add_request("running", running, engine.sampling(max_tokens=RUNNING))
        core.step()
        num_listed = sum(library.find(library.key(chunk), chunk) is not None for chunk in chunks)
        if num_listed == len(chunks):
            break
    while core.has_unfinished_requests():
        core.step()
    return {"num_listed": num_listed, "told": report(engine.run(tokens, positions, ratio=0.0))}


def main() -> None:
    prompts = Prompts(system=40, chunks=3, size=120, question=23)
    tokens, positions = prompts.prompt(ORDER)
    with tempfile.TemporaryDirectory() as folder:
        engine = two_ranks(directory=folder)
        engine.learn(prompts)
        engine.llm.reset_prefix_cache()
        stale = engine.logprobs(tokens, positions, ratio=0.0)
        config = engine.llm.llm_engine.vllm_config
        announcer = Announcer(config.instance_id, num_inboxes=1)
        told: dict[str, Any] = {"announced": check_announced(engine, prompts, announcer)}
        announcer.close()
        forget(engine)  # now a request waits for its chunks
        loaded = engine.logprobs(tokens, positions, ratio=0.0)
    told["loaded_difference"] = float((loaded - stale).abs().max())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
