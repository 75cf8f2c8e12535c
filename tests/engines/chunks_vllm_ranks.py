"""Check chunk reuse inside an offline vLLM of two workers, in vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group

from ragboost.chunk_cache.core.fill_budget import StepBudget
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.scheduler import RequestState
from tests.engines.chunks_vllm import (
    check_batch,
    check_ends,
    check_new_weights,
    check_preemption,
    check_reset,
    check_reuse,
    check_shared_step,
    report,
    scheduler_of,
)
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import POLICIES, SMALL, Prompts

SIZE = 120
STORED = 4  # chunks that fit into the store


def two_ranks(**settings: Any) -> ReuseLLM:
    return ReuseLLM(
        SMALL,
        blocks=75,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        tensor_parallel_size=2,
        settings=settings,
    )


def stored_keys(worker: Any) -> list[str]:
    """Return the keys in a rank's store; runs there."""
    memory = get_kv_transfer_group().filler.library.store.memory
    return sorted(key for key, _ in memory.items())


def lose(worker: Any, *, rank: int) -> None:
    """Empty the store of one rank; runs in all."""
    if worker.rank == rank:
        get_kv_transfer_group().filler.library.store.clear()


def learn_anew(engine: ReuseLLM, prompts: Prompts) -> None:
    """Replace what is stored by chunks that were computed alone."""
    for rank in (0, 1):
        engine.llm.collective_rpc(lose, kwargs={"rank": rank})
    scheduler_of(engine)._library.store.clear()
    engine.learn(prompts)


def check_policies(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Two ranks, each with half of the heads, choose what one would."""
    order = [3, 1, 0]
    tokens, positions = prompts.prompt(order)
    learn_anew(engine, prompts)
    reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore())
    reuse.precompute(prompts.system, prompts.chunks)
    chunks = [prompts.chunks[number] for number in order]
    worst = {}
    for policy in POLICIES:
        engine.llm.reset_prefix_cache()
        got = engine.logprobs(tokens, positions, policy=policy, ratio=0.15)
        wanted = reuse.prefill(prompts.system, chunks, prompts.question, policy=policy, ratio=0.15)
        logprobs = torch.log_softmax(wanted.logits.float(), -1)
        worst[policy] = float((got - logprobs).abs().max())
    return worst


def check_stores(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """The ranks hold the same chunks, no more than fit."""
    for number in (0, 1, 2, 3, 4, 0, 3):
        engine.run(*prompts.prompt([number]))
    engine.run(prompts.tokens(30))  # carries the last orders
    held = engine.llm.collective_rpc(stored_keys)
    listed = sorted(key for key, _ in scheduler_of(engine)._library.store.memory.items())
    kept = [[f"{key}-{rank}" for key in listed] for rank in range(2)]  # a key per chunk and rank
    return {"is_equal": held == kept, "num_stored": len(listed)}


def check_lost(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """A chunk that one rank has lost is computed by all, and reused again once it is stored."""
    tokens, positions = prompts.prompt([1, 2])
    learn_anew(engine, prompts)
    exact = engine.exact(tokens)
    engine.llm.collective_rpc(lose, kwargs={"rank": 1})
    told, errors = [], []
    for _ in range(4):
        engine.llm.reset_prefix_cache()
        told.append(report(engine.run(tokens, positions, ratio=1.0)))
        engine.llm.reset_prefix_cache()
        errors.append(float((engine.logprobs(tokens, positions, ratio=1.0) - exact).abs().max()))
    return {"reasons": [each.get("reason") for each in told], "error": max(errors)}


def check_pacing(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """A long prompt is filled over several steps by both ranks, and may be aborted there."""
    tokens, positions = prompts.prompt([0, 3, 2])
    chunks, core = scheduler_of(engine), engine.llm.llm_engine
    engine.llm.reset_prefix_cache()
    at_once = engine.logprobs(tokens, positions, ratio=0.5)
    budget, chunks._budget = chunks._budget, StepBudget(64)
    engine.llm.reset_prefix_cache()
    paced = engine.logprobs(tokens, positions, ratio=0.5)
    engine.llm.reset_prefix_cache()
    sampling = engine.sampling(positions, ratio=0.5, max_tokens=5)
    core.add_request("aborted", {"prompt_token_ids": tokens}, sampling)
    core.step()
    num_waiting = sum(tracked.state is RequestState.FILLING for tracked in chunks._tracked.values())
    core.abort_request(["aborted"])
    engine.run(prompts.tokens(30), max_tokens=3)
    chunks._budget = budget
    scheduler = core.engine_core.engine_core.scheduler
    return {
        "difference": float((paced - at_once).abs().max()),
        "num_waiting": num_waiting,
        "num_left": len(chunks._tracked) + len(chunks._plans) + len(chunks._worker.outcomes),
        "usage_left": scheduler.kv_cache_manager.usage,
    }


def check_measuring(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Nothing is measured, and policies that need measurements reuse nothing approximate."""
    tokens, positions = prompts.prompt([0, 1, 2])
    engine.llm.reset_prefix_cache()
    measured = report(engine.run(tokens, positions, measure=True))
    engine.llm.reset_prefix_cache()
    unmeasured = report(engine.run(tokens, positions, policy="cachecraft", ratio=0.15))
    return {"reason": measured["reason"], "reused": unmeasured["reused"]}


def main() -> None:
    size = SMALL["num_hidden_layers"] * 2 * 32 * 4 * SIZE  # one KV head of each rank
    engine = two_ranks(host_bytes=6 * size)
    prompts = Prompts(system=40, chunks=5, size=SIZE, question=23)
    told: dict[str, Any] = {"first": report(engine.run(*prompts.prompt([0, 1, 2, 3, 4])))}
    for check in (
        check_reuse,
        check_batch,
        check_ends,
        check_preemption,
        check_shared_step,
        check_policies,
        check_pacing,
        check_measuring,
        check_lost,
    ):
        told[check.__name__] = check(engine, prompts)
    scheduler_of(engine)._library.store.memory.capacity_bytes = STORED * size
    told["check_stores"] = check_stores(engine, prompts)
    told["check_reset"] = check_reset(engine, prompts)
    told["check_new_weights"] = check_new_weights(engine, prompts)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
