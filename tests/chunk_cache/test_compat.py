"""An engine's internals are used in one file of each engine's room, so that a new version of the
engine is that file's affair."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragboost import cache_events
from ragboost.chunk_cache.vllm.compat import APPROXIMATE

ROOM = Path(__file__).parents[2] / "ragboost" / "chunk_cache"
FILES = sorted(path for path in ROOM.rglob("*.py") if path.name != "compat.py")

# Where an engine calls us: classes to subclass, and the registries that name them.
EXTENSION_POINTS = {
    "vllm/connector.py": {
        "vllm.distributed.kv_transfer",
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
    },
    "vllm/worker.py": {
        "vllm.platforms",
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.cpu_worker",
    },
    "vllm/executor.py": {
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.executor.uniproc_executor",
    },
    "sglang/cache.py": {
        "sglang.srt.mem_cache.base_prefix_cache",
        "sglang.srt.mem_cache.registry",
        "sglang.srt.mem_cache.unified_radix_cache",
    },
    "sglang/plugin.py": {
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.mem_cache.registry",
        "sglang.srt.plugins.hook_registry",
    },
}
INTERNALS = re.compile(
    r"\.(block_hashes|_block_hasher|update_block_hashes|get_block_ids|kv_cache_groups|attn_groups"
    r"|static_forward_context|impl|kv_cache|do_kv_cache_update|mm_features|prompt_embeds"
    r"|skip_reading_prefix_cache|req_to_token_pool|req_to_token|token_to_kv_pool"
    r"|token_to_kv_pool_allocator|tree_core|root_node_handle|set_kv_buffer|get_key_buffer"
    r"|residual_stream|forward_stream|forward_pass_id|multimodal_inputs|logprob_start_len)\b"
)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOM)))
def test_only_compat_opens_an_engine(path: Path) -> None:
    name = str(path.relative_to(ROOM))
    imported = {module for module in _imported(path) if module.split(".")[0] in {"vllm", "sglang"}}

    assert imported == EXTENSION_POINTS.get(name, set())
    if name.startswith(("vllm/", "sglang/")):
        assert not INTERNALS.findall(path.read_text(encoding="utf-8"))


def test_the_proxy_knows_the_medium_of_withdrawn_blocks() -> None:
    assert cache_events.APPROXIMATE == APPROXIMATE
