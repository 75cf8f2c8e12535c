"""The only door to vLLM's internals, for the versions in `TESTED_VERSIONS`. Does not know chunks.
Imports vLLM on first use: `refusal` is where a moved internal shows."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from ragboost.chunk_cache.core.internals import import_internals
from ragboost.chunk_cache.model.nested_model import NestedLayer
from ragboost.chunk_cache.model.paged_cache import PagedLayer
from ragboost.chunk_cache.model.ranks import ONE_RANK, GroupRanks, Ranks
from ragboost.errors import ChunkCacheError, UnsupportedModelError

TESTED_VERSIONS = ("0.32", "0.33")
APPROXIMATE = "RAGBOOST_APPROXIMATE"
"""Medium of a cache event that withdraws blocks which hold approximate KV; known to the proxy."""


_INTERNALS = MappingProxyType(
    {
        "vllm": "__version__",
        "vllm.distributed.kv_events": "BlockRemoved",
        "vllm.distributed.parallel_state": "get_tp_group",
        "vllm.forward_context": "set_forward_context",
        "vllm.model_executor.layers.attention": "Attention",
        "vllm.model_executor.models.utils": "extract_layer_index",
        "vllm.v1.attention.backend": "CommonAttentionMetadata",
        "vllm.v1.core.kv_cache_utils": "maybe_convert_block_hash",
        "vllm.sampling_params": "SamplingParams",
        "vllm.v1.kv_cache_interface": "FullAttentionSpec",
        "vllm.v1.request": "Request",
    }
)


@cache
def _vllm() -> SimpleNamespace:
    return import_internals(_INTERNALS)


def refusal(config: Any, kv_cache_config: Any) -> str | None:
    vllm, parallel, model = _vllm(), config.parallel_config, config.model_config
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    block_size = config.cache_config.block_size
    hash_block_size = getattr(kv_cache_config, "hash_block_size", None)
    block_sizes = {hash_block_size or block_size, *(spec.block_size for spec in specs)}
    refused = {
        "untested_version": ".".join(vllm.version.split(".")[:2]) not in TESTED_VERSIONS,
        "pipeline_parallel": parallel.pipeline_parallel_size > 1,
        "data_parallel": parallel.data_parallel_size > 1,
        "expert_parallel": parallel.enable_expert_parallel,
        "context_parallel": parallel.decode_context_parallel_size > 1,
        "several_nodes": parallel.nnodes > 1,
        "worker_processes": parallel.world_size != parallel.tensor_parallel_size,
        "lora": config.lora_config is not None,
        "speculative_decoding": config.speculative_config is not None,
        "mla": model.use_mla,
        "encoder_decoder": model.is_encoder_decoder,
        "multimodal_positions": model.uses_mrope,
        "pooling_model": model.runner_type != "generate",
        "quantised_kv": config.cache_config.cache_dtype != "auto",
        "hybrid_model": [type(spec) for spec in specs] != [vllm.FullAttentionSpec],
        "several_block_sizes": block_sizes != {block_size},
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)


# Requests, in the scheduler.


def request_refusal(request: Any) -> str | None:
    sampling = request.sampling_params
    refused = {
        "pooling_model": sampling is None,
        "prompt_logprobs": sampling is not None and sampling.prompt_logprobs is not None,
        "no_prefix_cache": request.skip_reading_prefix_cache,
        "multimodal": bool(request.mm_features),
        "prompt_embeddings": request.prompt_token_ids is None or request.prompt_embeds is not None,
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)


def block_ids(cache_manager: Any, request_id: str) -> list[int]:
    return list(cache_manager.get_block_ids(request_id)[0])


class BlockSalt:
    """Hashes of their own for the blocks of a request from number `first` on: those with
    approximate KV, and all that are completed later, since their hashes chain on."""

    def __init__(self, request: Any, first: int, *, salt: bytes) -> None:
        self.first = first
        self._request, self._salt = request, salt
        self._before = request._block_hasher  # None: without a prefix cache
        is_salted = isinstance(self._before, BlockSalt)
        self._plain = self._before._plain if is_salted else self._before
        self._plain_hashes = request.block_hashes[first:]
        self._salted_hashes: list[Any] | None = None

    def apply(self) -> None:
        """Salt the blocks. Again after `remove`, it costs no hashing."""
        request, hashes = self._request, self._request.block_hashes
        if self._before is None:
            return
        request._block_hasher = self
        del hashes[self.first :]
        if self._salted_hashes is None:
            request.update_block_hashes()
            self._salted_hashes = hashes[self.first :]
        else:
            hashes.extend(self._salted_hashes)

    def remove(self) -> None:
        """Give the blocks their hashes back. The request must have no new tokens."""
        self._request._block_hasher = self._before
        self._request.block_hashes[self.first :] = self._plain_hashes

    def first_hash(self) -> Any | None:
        hashes = self._request.block_hashes
        return hashes[self.first] if self.first < len(hashes) else None

    def __call__(self, request: Any) -> list[Any]:
        """Return the hashes of the blocks that have none yet, as vLLM's own hasher does."""
        hashes = request.block_hashes
        num_hashed = len(hashes)
        fresh = list(self._plain(request))
        place = self.first - num_hashed
        if not 0 <= place < len(fresh):
            return fresh
        kept = [*fresh[:place], self._salted(fresh[place])]
        hashes.extend(kept)
        kept.extend(self._plain(request))  # these chain on the salted block
        del hashes[num_hashed:]
        return kept

    def _salted(self, plain: Any) -> Any:
        digest = hashlib.sha256(b"ragboost" + self._salt + plain).digest()
        return type(plain)(digest[: len(plain)])


def unfilled_blocks(blocks: Any, start: int, stop: int, *, block_size: int) -> list[int]:
    """Return the blocks of the tokens [start, stop) of a request, by its allocated ones."""
    return list(blocks.get_block_ids()[0])[start // block_size : -(-stop // block_size)]


Hasher = Callable[[Any], list[bytes]]


def new_request(tokens: list[int], hasher: Hasher) -> Any:
    sampling = _vllm().SamplingParams(max_tokens=1)
    return _vllm().Request("ragboost", tokens, sampling, None, block_hasher=hasher)


def check_salting(make_request: Callable[[list[int], Hasher], Any]) -> None:
    """Raise `ChunkCacheError` unless vLLM's requests take their hashes from where `BlockSalt` gives
    them: without that, exact requests would find approximate blocks."""
    request = make_request([*range(7)], _block_hashes)
    plain, salt = list(request.block_hashes), BlockSalt(request, 1, salt=b"self-test")
    salt.apply()
    salted = list(request.block_hashes)
    salt.remove()
    is_apart = salted[:1] == plain[:1] and set(plain[1:]).isdisjoint(salted)
    if not (is_apart and len(salted) == len(plain) == 3 and plain == request.block_hashes):
        raise ChunkCacheError("this vLLM does not hash the blocks of a request as it is told to")


def _block_hashes(request: Any, *, size: int = 2) -> list[bytes]:
    hashes, tokens = list(request.block_hashes), list(request.all_token_ids)
    first = len(hashes)
    for end in range(size * (first + 1), len(tokens) + 1, size):
        block = repr((hashes[-1:], tokens[end - size : end]))
        hashes.append(hashlib.sha256(block.encode()).digest())
    return hashes[first:]


def withdrawal(block_hash: Any) -> Any:
    hashes = [_vllm().maybe_convert_block_hash(block_hash)]
    return _vllm().BlockRemoved(block_hashes=hashes, medium=APPROXIMATE, group_idx=0)


# The model and its cache, in the worker.


def find_ranks(config: Any) -> Ranks:
    is_one = config.parallel_config.tensor_parallel_size == 1
    return ONE_RANK if is_one else GroupRanks(_vllm().get_tp_group().cpu_group)


def attention_layers(config: Any, *, model: str = "") -> list[Any]:
    """Return the attention layers; `UnsupportedModelError`: ours cannot replace them."""
    vllm = _vllm()
    found = {
        name: layer
        for name, layer in config.compilation_config.static_forward_context.items()
        if isinstance(layer, vllm.Attention)
    }
    layers = [found[name] for name in sorted(found, key=vllm.extract_layer_index)]
    if any(layer.kv_sharing_target_layer_name is not None for layer in layers):
        raise UnsupportedModelError(f"{model} shares KV between layers")
    if any(getattr(layer.impl, "alibi_slopes", None) is not None for layer in layers):
        raise UnsupportedModelError(f"{model} has ALiBi instead of RoPE")
    return layers


def describe_layer(layer: Any) -> NestedLayer:
    return NestedLayer(
        layer.layer_name,
        layer.num_heads,
        layer.num_kv_heads,
        layer.head_size,
        layer.head_size_v,
        float(layer.impl.scale),
        window=layer.sliding_window,
        softcap=getattr(layer.impl, "logits_soft_cap", None) or None,
        sinks=getattr(layer.impl, "sinks", None),
    )


def paged_layer(layer: Any, config: Any) -> PagedLayer:
    block_size = int(config.cache_config.block_size)
    return PagedLayer(
        layer.kv_cache,
        partial(layer.impl.do_kv_cache_update, layer),
        num_slots=int(config.cache_config.num_gpu_blocks) * block_size,
        block_size=block_size,
        shapes=((layer.num_kv_heads, layer.head_size), (layer.num_kv_heads, layer.head_size_v)),
    )


def nested_forward(config: Any, num_tokens: int) -> AbstractContextManager[None]:
    """Let the model run outside the scheduler's step, without compiled code or CUDA graphs."""
    context: AbstractContextManager[None] = _vllm().set_forward_context(
        None, config, num_tokens=num_tokens, skip_compiled=True
    )
    return context


def engine_forward(
    runner: Any, config: Any, tokens: Sequence[int], start: int, slots: torch.Tensor
) -> torch.Tensor:
    """Run the tokens from `start` on, in slots that begin a block, with vLLM's own attention over
    its paged cache; return the last one's hidden states, (hidden size,)."""
    device, num_rows, total = runner.device, len(tokens) - start, len(tokens)
    size = config.cache_config.block_size
    positions = torch.arange(start, total, device=device)
    starts = torch.tensor([0, num_rows], dtype=torch.int32)
    lengths = torch.tensor([total], dtype=torch.int32)
    common = _vllm().CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        num_reqs=1,
        num_actual_tokens=num_rows,
        max_query_len=num_rows,
        max_seq_len=total,
        block_table_tensor=(slots[::size] // size).to(torch.int32)[None],
        slot_mapping=slots[start:],
        causal=True,
        positions=positions,
        is_prefilling=torch.ones(1, dtype=torch.bool),
        seq_lens_cpu_upper_bound=lengths,
    )
    metadata: dict[str, Any] = {}
    for group in (group for groups in runner.attn_groups for group in groups):
        built = group.build_metadata(common)
        metadata.update((name, built) for name in group.layer_names)
    model = runner.get_model()
    ids = torch.tensor(list(tokens[start:]), device=device)
    mapping = {layer.layer_name: slots[start:] for layer in attention_layers(config)}
    with _vllm().set_forward_context(
        metadata, config, num_tokens=num_rows, slot_mapping=mapping, skip_compiled=True
    ):
        hidden: torch.Tensor = model(input_ids=ids, positions=positions)
    return hidden[-1]
