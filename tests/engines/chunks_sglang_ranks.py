"""Check chunk reuse inside an offline SGLang of two ranks, in SGLang's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.engines.chunks_sglang import (
    PAGE,
    check_abort,
    check_batch,
    check_ends,
    check_pacing,
    check_pressure,
    check_reuse,
)
from tests.engines.offline_sglang import ReuseSGLang
from tests.engines.random_model import POLICIES, SMALL, Prompts
from tests.eventually import eventually

SIZE = 120
STORED = 6  # chunks that fit into the store


def check_policies(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """Two ranks, each with half of the heads, choose what one would."""
    reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore())
    reuse.precompute(prompts.system, prompts.chunks)
    worst = {}
    order = [3, 1, 0]
    tokens, positions = prompts.prompt(order)
    chunks = [prompts.chunks[number] for number in order]
    for policy in POLICIES:
        engine.flush()
        got = engine.logprobs(tokens, positions, policy=policy, ratio=0.15)
        wanted = reuse.prefill(prompts.system, chunks, prompts.question, policy=policy, ratio=0.15)
        logprobs = torch.log_softmax(wanted.logits.float(), -1)
        worst[policy] = float((got - logprobs).abs().max())
    return worst


def check_evictions(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """With more chunks than fit into the stores, answers are right and reuse goes on."""
    others = [prompts.tokens(SIZE) for _ in range(STORED)]
    prompts.chunks.extend(others)
    worst, num_reused = 0.0, 0
    for first in range(len(prompts.chunks) - 1):
        engine.flush()
        for order in ([first], [first + 1], [first + 1, first]):
            tokens, positions = prompts.prompt(order)
            got = engine.logprobs(tokens, positions, ratio=1.0)
            worst = max(worst, float((got - engine.exact(tokens)).abs().max()))
        engine.flush()
        told = engine.run(tokens, positions, ratio=0.0)["report"]
        num_reused += told["reused"] > 0
    return {"error": worst, "num_reused": num_reused, "num_asked": len(prompts.chunks) - 1}


def check_measuring(engine: ReuseSGLang, prompts: Prompts) -> str:
    """Nothing is measured, with the reason."""
    engine.flush()
    told = engine.run(*prompts.prompt([0, 1]), measure=True)["report"]
    return str(told["reason"])


CHECKS = (
    check_reuse,
    check_batch,
    check_ends,
    check_pressure,
    check_abort,
    check_pacing,
    check_evictions,
)


def main() -> None:
    size = SMALL["num_hidden_layers"] * 2 * 32 * 4 * SIZE  # one KV head of each rank
    options: dict[str, Any] = {"page_size": PAGE, "tokens": 3200, "tp_size": 2}
    settings: dict[str, Any] = {"host_bytes": STORED * size, "step_tokens": 64}
    with ReuseSGLang(SMALL, settings=settings, **options) as engine:
        prompts = Prompts(system=40, chunks=5, size=SIZE, question=23)
        for number in range(len(prompts.chunks)):
            engine.run(*prompts.prompt([number]))
        told: dict[str, Any] = {"check_policies": check_policies(engine, prompts)}
        told["check_measuring"] = check_measuring(engine, prompts)
        for check in CHECKS:
            told[check.__name__] = check(engine, prompts)
    with tempfile.TemporaryDirectory() as folder:
        with ReuseSGLang(SMALL, settings={"directory": folder}, **options) as engine:
            for number in range(3):
                engine.run(*prompts.prompt([number]))
            eventually(lambda: len([*Path(folder).glob("*.safetensors")]), equals=6)
        files = [load_file(path) for path in Path(folder).glob("*.safetensors")]
    heads = {tuple(tensors[name].sum().item() for name in sorted(tensors)) for tensors in files}
    told["num_different"] = len(heads)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
