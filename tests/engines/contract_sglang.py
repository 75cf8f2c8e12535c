"""Compare SGLang's radix trees with a mirror fed by RAGBoost's hook, inside SGLang's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import random
from array import array
from typing import Any

import torch
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventBatch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from ragboost.cache_events import decode_batch
from ragboost.cache_sync.prefix_mirror import PrefixMirror
from ragboost.engine_hooks import sglang as plugin
from ragboost.engine_hooks.reporter import Reporter
from ragboost.engine_hooks.reports import encode

PAGE, STEPS, CAPACITY = 16, 1500, 1024


class Allocator:
    """Mock allocator that evictions return memory to."""

    device = torch.device("cpu")

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        pass

    def free(self, indices: Any) -> None:
        pass

    def available_size(self) -> int:
        return 0


def make_radix() -> Any:
    return RadixCache.create_simulated(
        page_size=PAGE, enable_kv_cache_events=True, mock_allocator=Allocator()
    )


def make_unified() -> Any:
    """Return the tree that a server uses by default."""
    return UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=Allocator(),
            page_size=PAGE,
            enable_kv_cache_events=True,
            tree_components=(ComponentType.FULL,),
        )
    )


def size(cache: Any) -> int:
    total = cache.total_size()
    return total if isinstance(total, int) else total[0]


def drive(cache: Any) -> dict[str, object]:
    """Insert and evict at random, and count the differences between mirror and tree."""
    plugin.register()
    plugin.register()  # SGLang may load a plug-in twice in one process
    config = json.dumps({"publisher": "ragboost", "endpoint": "http://127.0.0.1:9"})
    publisher = EventPublisherFactory.create(config, attn_dp_rank=2)
    reporter: Reporter = publisher.reporter
    mirror = PrefixMirror()
    mirror.clear(is_partial=False)
    rng = random.Random(1)
    documents = [
        [rng.randrange(30_000) for _ in range(PAGE * rng.randrange(1, 6) + rng.randrange(7))]
        for _ in range(8)
    ]
    wrong_hits = wrong_requests = wrong_sizes = batches = 0
    for step in range(STEPS):
        tokens = [token for i in rng.sample(range(8), 3) for token in documents[i]]
        tokens = tokens[: len(tokens) // PAGE * PAGE]
        salt = "tenant" if step % 5 == 0 else None
        key = RadixKey(array("q", tokens), cache_salt=salt)
        predicted = mirror.match_tokens(tokens, cache_salt=salt)
        cached = cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
        wrong_hits += predicted != cached
        cache.insert(
            InsertParams(
                key=RadixKey(array("q", tokens), cache_salt=salt),
                value=torch.arange(len(tokens)),
                session_id=str(step),
            )
        )
        if size(cache) > CAPACITY:
            cache.evict(EvictParams(num_tokens=size(cache) - CAPACITY))
        if step == STEPS // 2:
            cache.reset()
        batch = KVEventBatch(ts=float(step), events=cache.take_events())
        if batch.events:
            batches += 1
            publisher.publish(batch)
            mirror.apply(decode_batch(encode((batch.ts, batch.events))))
        resident = mirror.resident_tokens(str(step))
        matched = mirror.match_tokens(tokens, cache_salt=salt)
        wrong_requests += resident is not None and resident > matched
        wrong_sizes += mirror.num_resident_tokens != size(cache)
    mirror.check_integrity()
    publisher.shutdown()
    return {
        "batches": batches,
        "stream": reporter.stream.rpartition("/")[2],
        "lost": reporter.num_dropped,
        "wrong_sizes": wrong_sizes,
        "wrong_hits": wrong_hits,
        "wrong_requests": wrong_requests,
        "is_partial": mirror.is_partial,
        "num_requests": mirror.num_requests,
    }


if __name__ == "__main__":
    print(json.dumps({"radix": drive(make_radix()), "unified": drive(make_unified())}))
