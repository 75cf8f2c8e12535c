"""Measure what several workers exchange per prompt, against one index process for all of them.

    python -m benchmarks.scale.workers --json

Each worker follows every engine stream by itself, and learns the layouts of the others' prompts:
that is what `ragboost serve --workers` does. An index process would follow each stream once, get
every worker's layouts, and send all workers the resident tokens of the requests that changed;
`index_process` counts that from the same messages. Bytes are of payloads and are exact; times are
processor time of one thread, in microseconds per prompt.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.command import make_parser
from benchmarks.scale.event_batches import event_batches
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.proxy.workers.messages import SentPrompt, decode, encode

NUM_WORKERS = (2, 4, 8)
MESSAGES_PER_PROMPT = 2  # when it is sent, and corrected when it is answered
DOCUMENTS = 15


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=4000, help="of a prompt")
    parser.add_argument("--stored", type=float, default=0.5, help="share that was not cached")
    parser.add_argument("--block-size", type=int, default=16)
    args = parser.parse_args()
    result = measure(
        args.prompts, tokens=args.tokens, stored=args.stored, block_size=args.block_size
    )
    print(json.dumps(result) if args.json else json.dumps(result, indent=2))


def measure(num: int, *, tokens: int, stored: float, block_size: int) -> dict[str, Any]:
    """Return the figures of one worker, and what they come to with several."""
    num_blocks = round(tokens * stored / block_size)
    batches = event_batches(num, num_blocks=num_blocks, block_size=block_size)
    changes: list[Changes] = []
    stream = EventStream(on_change=changes.append)
    stream.connected()
    mirror_us = _us(lambda: [stream.receive(seq, data) for seq, data in enumerate(batches)], num)
    prompts = make_prompts(num, tokens=tokens)
    data: list[bytes] = []
    encode_us = _us(lambda: data.extend(encode(prompt) for prompt in prompts), num)
    decoded: list[Any] = []
    decode_us = _us(lambda: decoded.extend(decode(each) for each in data), num)
    learn_us = _us(lambda: asyncio.run(learn(decoded)), num)
    per_prompt = {
        "event_bytes": round(sum(map(len, batches)) / num),
        "layout_bytes": round(sum(map(len, data)) / num),
        "change_bytes": round(
            sum(len(msgspec.msgpack.encode(each.resident_tokens)) for each in changes) / num
        ),
        "mirror_us": mirror_us,
        "encode_us": encode_us,
        "learn_us": round(decode_us + learn_us, 1),
    }
    return {"per_prompt": per_prompt, "machine": [_totals(per_prompt, n) for n in NUM_WORKERS]}


def _totals(costs: dict[str, float], num_workers: int) -> dict[str, Any]:
    """Return what a prompt costs on all workers together."""
    others, layouts = num_workers - 1, MESSAGES_PER_PROMPT
    exchange_bytes = layouts * others * costs["layout_bytes"]
    exchange_us = layouts * (costs["encode_us"] + others * costs["learn_us"])
    to_index = layouts * costs["layout_bytes"]
    return {
        "workers": num_workers,
        "each_follows": {
            "event_bytes": num_workers * costs["event_bytes"],
            "exchange_bytes": exchange_bytes,
            "us": round(num_workers * costs["mirror_us"] + exchange_us, 1),
        },
        "index_process": {
            "event_bytes": costs["event_bytes"],
            "exchange_bytes": exchange_bytes + to_index + num_workers * costs["change_bytes"],
            "us": round(costs["mirror_us"] + exchange_us, 1),
        },
    }


def make_prompts(num: int, *, tokens: int) -> Sequence[SentPrompt]:
    """Return one layout per prompt, of documents from a shared pool behind one system prompt."""
    rng = random.Random(1)
    pool = [f"{rng.getrandbits(128):032x}" for _ in range(300)]
    length = tokens // DOCUMENTS
    prompts = []
    for number in range(num):
        documents = tuple("0123456789abcdef" + key for key in rng.sample(pool, DOCUMENTS))
        layout = PromptLayout(
            TenantKey("model", ""),
            documents,
            (length,) * DOCUMENTS,
            (8,) * DOCUMENTS,
            20,
            tokens,
            prompt_prefix="0123456789abcdef",
            scale=1.1,
        )
        prompts.append(SentPrompt("127.0.0.1:8000", f"{number:032x}", layout))
    return prompts


async def learn(prompts: Sequence[SentPrompt]) -> None:
    follower = CacheFollower("127.0.0.1:8000", Tenants(Settings()))
    for prompt in prompts:
        await follower.learn(prompt.request_id, prompt.layout)


def _us(work: Callable[[], object], num: int) -> float:
    started = time.thread_time()
    work()
    return round((time.thread_time() - started) / num * 1e6, 1)


if __name__ == "__main__":
    main()
