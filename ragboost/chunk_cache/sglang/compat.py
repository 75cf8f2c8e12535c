"""The only door to SGLang's internals, for one of `TESTED_VERSIONS`. Does not know chunks. Imports
SGLang on first use: `refusal` is where a moved internal shows."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.core.internals import import_internals
from ragboost.chunk_cache.model.nested_model import NestedLayer
from ragboost.chunk_cache.model.ranks import ONE_RANK, GroupRanks, Ranks
from ragboost.chunk_cache.store.chunk import KV
from ragboost.errors import UnsupportedModelError

TESTED_VERSIONS = ("0.5.23",)


_INTERNALS = MappingProxyType(
    {
        "sglang": "__version__",
        "sglang.srt.distributed": "get_tp_group",
        "sglang.srt.layers.radix_attention": "AttentionType RadixAttention",
        "sglang.srt.mem_cache.base_prefix_cache": "EvictParams",
        "sglang.srt.mem_cache.memory_pool": "MHATokenToKVPool",
        "sglang.srt.model_executor.forward_batch_info": "CaptureHiddenMode ForwardBatch "
        "ForwardMode",
        "sglang.srt.model_executor.forward_context": "ForwardContext forward_context",
    }
)


@cache
def _sglang() -> SimpleNamespace:
    return import_internals(_INTERNALS)


def refusal(context: Any) -> str | None:
    runner, params, args = context.tp_worker.model_runner, context.params, context.server_args
    refused = {
        "untested_version": _sglang().version not in TESTED_VERSIONS,
        "pipeline_parallel": params.pp_size > 1,
        "context_parallel": params.attn_cp_size > 1,
        "data_parallel": args.dp_size > 1,
        "expert_parallel": args.ep_size > 1,
        "several_nodes": args.nnodes > 1,
        "lora": runner.lora_manager is not None,
        "speculative_decoding": params.is_eagle or args.speculative_algorithm is not None,
        "mla": runner.model_config.attention_arch.name == "MLA",
        "encoder_decoder": runner.model_config.is_encoder_decoder,
        "multimodal_positions": runner.model_config.model_is_mrope,
        "pooling_model": not runner.is_generation,
        "hybrid_model": context.is_hybrid_swa or context.is_hybrid_ssm,
        "hierarchical_cache": context.enable_hierarchical_cache,
        "no_prefix_cache": context.disable_radix_cache,
        "disaggregation": args.disaggregation_mode != "null",
        "diffusion_model": args.dllm_algorithm is not None,
    }
    reason = next((reason for reason, is_refused in refused.items() if is_refused), None)
    return reason or _pool_refusal(runner.token_to_kv_pool, runner.dtype)


def _pool_refusal(pool: Any, dtype: torch.dtype) -> str | None:
    if pool.dtype != dtype or pool.store_dtype != dtype:
        return "quantised_kv"
    is_plain = type(pool) is _sglang().MHATokenToKVPool and pool.kv_cache_layout == "nhd"
    return None if is_plain else "kv_layout"


# Requests and their slots, in the scheduler.


def request_refusal(req: Any) -> str | None:
    refused = {
        "multimodal": req.multimodal_inputs is not None,
        "prompt_embeddings": req.input_embeds is not None
        or req.positional_embed_overrides is not None,
        "session": req.session is not None,
        "prompt_logprobs": req.return_logprob
        and 0 <= req.logprob_start_len < len(req.origin_input_ids) - 1,
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)


def prefix_slots(tree: Any, req: Any) -> torch.Tensor:
    root = tree.root_node_handle(req.extra_key)
    slots: torch.Tensor = tree.tree_core.collect_full_device_indices(req.last_node, root)
    return slots


def prompt_slots(tree: Any, req: Any, start: int, stop: int) -> torch.Tensor:
    row = tree.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
    slots: torch.Tensor = row[start:stop].to(torch.int64)
    return slots


def allocate_slots(tree: Any, count: int) -> torch.Tensor | None:
    """Return free slots, for which the tree may lose prefixes; None if there are not as many."""
    allocator = tree.token_to_kv_pool_allocator
    if allocator.available_size() < count:
        tree.evict(_sglang().EvictParams(num_tokens=count))
    slots: torch.Tensor | None = allocator.alloc(count)
    return slots


def free_slots(tree: Any, slots: torch.Tensor | None) -> None:
    if slots is not None:
        tree.token_to_kv_pool_allocator.free(slots)


# The model and its KV pool.


def find_ranks(context: Any) -> Ranks:
    return ONE_RANK if context.tp_size == 1 else GroupRanks(_sglang().get_tp_group().cpu_group)


def read_pool(runner: Any, number: int, slots: torch.Tensor) -> KV:
    """Return keys and values of a layer, (1, kv heads, slots, head_dim)."""
    pool = runner.token_to_kv_pool
    keys, values = (
        buffer[slots].transpose(0, 1)[None].contiguous()
        for buffer in (pool.get_key_buffer(number), pool.get_value_buffer(number))
    )
    return keys, values


def write_pool(runner: Any, layer: Any, kv: KV, slots: torch.Tensor) -> None:
    keys, values = (part[0].transpose(0, 1).contiguous() for part in kv)
    runner.token_to_kv_pool.set_kv_buffer(layer, slots, keys, values)


def num_passes(runner: Any) -> int:
    return int(runner.forward_pass_id)


@contextmanager
def between_passes(runner: Any) -> Iterator[None]:
    """Run behind the forward passes that SGLang has launched, and before later ones."""
    if torch.device(runner.device).type != "cuda":
        yield
        return
    forward, current = runner.forward_stream, torch.cuda.current_stream()
    forward.wait_stream(current)
    with torch.cuda.stream(forward):
        yield
    current.wait_stream(forward)


def attention_layers(model: nn.Module) -> list[tuple[str, Any]]:
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _sglang().RadixAttention)
    ]
    found.sort(key=lambda item: item[1].layer_id)
    if [layer.layer_id for _, layer in found] != list(range(len(found))) or not found:
        raise UnsupportedModelError(f"{type(model).__name__} has not one attention in every layer")
    return found


def describe_layer(name: str, layer: Any) -> NestedLayer:
    refused = {
        "attention that is not causal": layer.attn_type != _sglang().AttentionType.DECODER,
        "cross-attention": layer.is_cross_attention,
        "chunked attention": layer.use_irope,
        "temperature scaling": layer.xai_temperature_len > 0,
        "scaled keys": layer.k_scale is not None or layer.v_scale is not None,
    }
    for what, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(f"{name} has {what}")
    # SGLang's window counts the keys before a row, ours the row as well.
    window = layer.sliding_window_size + 1 if layer.sliding_window_size > -1 else None
    return NestedLayer(
        name,
        layer.tp_q_head_num,
        layer.tp_k_head_num,
        layer.qk_head_dim,
        layer.v_head_dim,
        float(layer.scaling),
        window=window,
        softcap=layer.logit_cap or None,
    )


def nested_forward(runner: Any, attention: Any) -> AbstractContextManager[None]:
    """Let attention layers ask for this backend instead of SGLang's."""
    attention.token_to_kv_pool = runner.token_to_kv_pool
    attention.req_to_token_pool = runner.req_to_token_pool
    context: AbstractContextManager[None] = _sglang().forward_context(
        _sglang().ForwardContext(attn_backend=attention)
    )
    return context


def extend_batch(
    ids: torch.Tensor,
    positions: torch.Tensor,
    *,
    row: int = 0,
    slots: torch.Tensor | None = None,
) -> Any:
    """Return a batch of one prompt's tokens, a request's in `row` of the table of slots; without
    slots they use slot 0, which no request owns."""
    sglang, count, device = _sglang(), len(ids), ids.device
    start = 0 if slots is None else int(positions[0])
    if slots is None:
        slots = torch.zeros(count, dtype=torch.int64, device=device)
    total = start + count
    int64 = {"dtype": torch.int64, "device": device}
    int32 = {"dtype": torch.int32, "device": device}
    return sglang.ForwardBatch(
        forward_mode=sglang.ForwardMode.EXTEND,
        batch_size=1,
        input_ids=ids,
        req_pool_indices=torch.tensor([row], **int64),
        seq_lens=torch.tensor([total], **int64),
        orig_seq_lens=torch.tensor([total], **int32),
        seq_lens_cpu=torch.tensor([total]),
        seq_lens_sum=total,
        req_pool_indices_cpu=torch.tensor([row]),
        out_cache_loc=slots,
        positions=positions,
        extend_num_tokens=count,
        extend_seq_lens=torch.tensor([count], **int32),
        extend_prefix_lens=torch.tensor([start], **int32),
        extend_start_loc=torch.zeros(1, **int32),
        extend_seq_lens_cpu=[count],
        extend_prefix_lens_cpu=[start],
        extend_logprob_start_lens_cpu=[count],
        capture_hidden_mode=sglang.CaptureHiddenMode.NULL,
        is_extend_in_batch=True,
        global_num_token_non_padded_cpu=count,
        lora_ids=[None],
    )


def engine_forward(
    runner: Any, tokens: Sequence[int], start: int, slots: torch.Tensor
) -> torch.Tensor:
    """Run the tokens from `start` on, of a prompt in these slots, with SGLang's own attention;
    return the last one's logits. No request may be running."""
    table = runner.req_to_token_pool.req_to_token
    row = len(table) - 1
    kept = table[row, : len(tokens)].clone()
    table[row, : len(tokens)] = slots.to(table.dtype)
    ids = torch.tensor(list(tokens[start:]), device=runner.device)
    positions = torch.arange(start, len(tokens), device=runner.device)
    batch = extend_batch(ids, positions, row=row, slots=slots[start:])
    try:
        output = runner.forward(batch)
    finally:
        table[row, : len(tokens)] = kept
    logits: torch.Tensor = output.logits_output.next_token_logits[-1]
    return logits
