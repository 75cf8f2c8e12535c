"""Compare vLLM's cache manager with a mirror fed by RAGBoost's hook, inside vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import os
import random
from collections import Counter
from typing import Any

import torch
from vllm.distributed.kv_events import EventPublisherFactory, KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from ragboost.cache_events import decode_batch
from ragboost.cache_sync.prefix_mirror import PrefixMirror
from ragboost.engine_hooks import vllm as plugin
from ragboost.engine_hooks.reporter import URL_VARIABLE, Reporter
from ragboost.engine_hooks.reports import encode

BLOCK_SIZE, NUM_BLOCKS, STEPS = 16, 64, 1500


def make_manager() -> Any:
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.bfloat16
    )
    config = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config,
        max_model_len=8192,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_caching=True,
    )


def main() -> None:
    os.environ[URL_VARIABLE] = "http://127.0.0.1:9"  # no server listens: reports must fail silently
    plugin.register()
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    manager = make_manager()  # vLLM's own configuration has events off
    publisher = EventPublisherFactory.create(None, 3)
    reporter: Reporter = publisher.reporter
    mirror = PrefixMirror()
    mirror.clear(is_partial=False)
    payloads: list[bytes] = []

    rng = random.Random(1)
    documents = [
        [rng.randrange(30_000) for _ in range(BLOCK_SIZE * rng.randrange(1, 6))] for _ in range(8)
    ]
    known: dict[Any, Any] = {}
    live: list[Any] = []
    wrong_states = wrong_hits = wrong_requests = 0
    for step in range(STEPS):
        tokens = [token for i in rng.sample(range(8), 3) for token in documents[i]]
        salt = "tenant" if step % 5 == 0 else None
        request = Request(
            str(step),
            tokens,
            SamplingParams(max_tokens=1),
            None,
            block_hasher=hasher,
            session_id=str(step),
            cache_salt=salt,
        )
        predicted = mirror.match_tokens(tokens, cache_salt=salt)
        blocks, cached, *_ = manager.get_computed_blocks(request)
        # vLLM computes at least the last token of a prompt, and matches whole blocks.
        predicted = min(predicted, (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE)
        wrong_hits += predicted != cached
        if manager.allocate_slots(request, len(tokens) - cached, cached, blocks) is not None:
            live.append(request)
        elif live:
            manager.free(live.pop(0))
        while len(live) > 1:  # two at a time, so that equal blocks are computed twice
            manager.free(live.pop(0))
        for block_hash in request.block_hashes:
            known[maybe_convert_block_hash(block_hash)] = block_hash
        if step == STEPS // 2:
            for held in live:
                manager.free(held)
            live.clear()
            assert manager.reset_prefix_cache()
        batch = KVEventBatch(ts=float(step), events=manager.take_events())
        if batch.events:
            publisher.publish(batch)
            payloads.append(encode((batch.ts, batch.events)))
            mirror.apply(decode_batch(payloads[-1]))
        pool = manager.block_pool
        held_hashes = Counter({h: num for h, raw in known.items() if (num := _copies(pool, raw))})
        mirrored = Counter(mirror.copies())
        wrong_states += mirrored != held_hashes
        resident = mirror.resident_tokens(str(step))
        matched = mirror.match_tokens(tokens, cache_salt=salt)
        wrong_requests += resident is not None and resident > matched
    mirror.check_integrity()
    reporter.close()
    print(
        json.dumps(
            {
                "batches": len(payloads),
                "stream": reporter.stream.rpartition("/")[2],
                "lost": reporter.num_dropped,
                "wrong_states": wrong_states,
                "wrong_hits": wrong_hits,
                "wrong_requests": wrong_requests,
                "is_partial": mirror.is_partial,
                "num_requests": mirror.num_requests,
            }
        )
    )


def _copies(pool: Any, block_hash: Any) -> int:
    """Count the physical blocks that hold a hash, by vLLM's own table."""
    return sum(
        1
        for block in pool.blocks
        if block.block_hash is not None and block.block_hash[: len(block_hash)] == block_hash
    )


if __name__ == "__main__":
    main()
