"""The uses of SGLang's internals that depend on its version, one of `TESTED_VERSIONS`.

Knows forward batches and configurations of SGLang. Does not know chunks. Its requests are in
`requests`.
"""

from collections.abc import Sequence
from typing import Any

import sglang
import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)

from ragboost.chunk_cache.model.ranks import ONE_RANK, GroupRanks, Ranks

TESTED_VERSIONS = ("0.5.23",)


def extend_batch(
    runner: Any,
    ids: torch.Tensor,
    positions: torch.Tensor,
    *,
    row: int = 0,
    slots: torch.Tensor | None = None,
) -> Any:
    """Return a batch that computes tokens of one prompt.

    Args:
        runner: the model runner.
        ids: token ids, (rows,).
        positions: their positions, (rows,).
        row: of the request in the table of slots.
        slots: KV slots of the tokens; None: slot 0, which no request owns.
    """
    count, device = len(ids), ids.device
    start = 0 if slots is None else int(positions[0])
    if slots is None:
        slots = torch.zeros(count, dtype=torch.int64, device=device)
    total = start + count
    one = {"dtype": torch.int64, "device": device}
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        input_ids=ids,
        req_pool_indices=torch.tensor([row], **one),
        seq_lens=torch.tensor([total], **one),
        orig_seq_lens=torch.tensor([total], dtype=torch.int32, device=device),
        seq_lens_cpu=torch.tensor([total]),
        seq_lens_sum=total,
        req_pool_indices_cpu=torch.tensor([row]),
        out_cache_loc=slots,
        positions=positions,
        extend_num_tokens=count,
        extend_seq_lens=torch.tensor([count], dtype=torch.int32, device=device),
        extend_prefix_lens=torch.tensor([start], dtype=torch.int32, device=device),
        extend_start_loc=torch.zeros(1, dtype=torch.int32, device=device),
        extend_seq_lens_cpu=[count],
        extend_prefix_lens_cpu=[start],
        extend_logprob_start_lens_cpu=[count],
        capture_hidden_mode=CaptureHiddenMode.NULL,
        is_extend_in_batch=True,
        global_num_token_non_padded_cpu=count,
        lora_ids=[None],
    )


def engine_forward(
    runner: Any, tokens: Sequence[int], *, start: int, slots: torch.Tensor
) -> torch.Tensor:
    """Run the tokens from `start` on with SGLang's own attention over its KV pool and return the
    last one's logits, (vocabulary,). No request may be running.

    Args:
        runner: the model runner.
        tokens: token ids of the whole prompt.
        start: number of tokens whose KV is in the slots.
        slots: KV slots of the prompt, (tokens,).
    """
    table = runner.req_to_token_pool.req_to_token
    row = len(table) - 1
    kept = table[row, : len(tokens)].clone()
    table[row, : len(tokens)] = slots.to(table.dtype)
    ids = torch.tensor(list(tokens[start:]), device=runner.device)
    positions = torch.arange(start, len(tokens), device=runner.device)
    batch = extend_batch(runner, ids, positions, row=row, slots=slots[start:])
    try:
        output = runner.forward(batch)
    finally:
        table[row, : len(tokens)] = kept
    logits: torch.Tensor = output.logits_output.next_token_logits[-1]
    return logits


def refusal(context: Any) -> str | None:
    """Return why reuse is impossible with this server; None if it is possible.

    Args:
        context: SGLang's `TreeCacheBuildContext`.
    """
    runner, params, args = context.tp_worker.model_runner, context.params, context.server_args
    refused = {
        "untested_version": sglang.__version__ not in TESTED_VERSIONS,
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


def find_ranks(context: Any) -> Ranks:
    """Return the processes that hold the model together.

    Args:
        context: SGLang's `TreeCacheBuildContext`.
    """
    return ONE_RANK if context.tp_size == 1 else GroupRanks(get_tp_group().cpu_group)


def _pool_refusal(pool: Any, dtype: torch.dtype) -> str | None:
    if pool.dtype != dtype or pool.store_dtype != dtype:
        return "quantised_kv"
    is_plain = type(pool) is MHATokenToKVPool and pool.kv_cache_layout == "nhd"
    return None if is_plain else "kv_layout"
