"""The uses of vLLM's internals in the worker, for the versions in `TESTED_VERSIONS`.

Knows attention layers and configurations of vLLM. Does not know chunks. Those in the scheduler are
in `requests`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import vllm
from vllm.distributed.kv_events import BlockRemoved
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ragboost.chunk_cache.model.ranks import ONE_RANK, GroupRanks, Ranks
from ragboost.engine_hooks.events import APPROXIMATE

TESTED_VERSIONS = ("0.32",)


def refusal(config: Any, kv_cache_config: Any) -> str | None:
    """Return why reuse is impossible with this configuration; None if it is possible."""
    parallel, model = config.parallel_config, config.model_config
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    block_size = config.cache_config.block_size
    hash_block_size = getattr(kv_cache_config, "hash_block_size", None)
    block_sizes = {hash_block_size or block_size, *(spec.block_size for spec in specs)}
    refused = {
        "untested_version": ".".join(vllm.__version__.split(".")[:2]) not in TESTED_VERSIONS,
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
        "hybrid_model": [type(spec) for spec in specs] != [FullAttentionSpec],
        "several_block_sizes": block_sizes != {block_size},
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)


def find_ranks(config: Any) -> Ranks:
    """Return the workers that hold this worker's model together."""
    is_one = config.parallel_config.tensor_parallel_size == 1
    return ONE_RANK if is_one else GroupRanks(get_tp_group().cpu_group)


def withdrawal(block_hash: Any) -> Any:
    """Return the cache event that withdraws a block, see `APPROXIMATE`."""
    hashes = [maybe_convert_block_hash(block_hash)]
    return BlockRemoved(block_hashes=hashes, medium=APPROXIMATE, group_idx=0)


def attention_layers(config: Any) -> list[Any]:
    """Return the attention layers of the model in their order."""
    found = {
        name: layer
        for name, layer in config.compilation_config.static_forward_context.items()
        if isinstance(layer, Attention)
    }
    return [found[name] for name in sorted(found, key=extract_layer_index)]


@contextmanager
def nested_forward(config: Any, num_tokens: int) -> Iterator[None]:
    """Let the model run outside the scheduler's step, without compiled code or CUDA graphs."""
    with set_forward_context(None, config, num_tokens=num_tokens, skip_compiled=True):
        yield


def engine_forward(
    runner: Any, config: Any, tokens: Sequence[int], *, start: int, blocks: Sequence[int]
) -> torch.Tensor:
    """Run the tokens from `start` on with vLLM's own attention over its paged cache and return the
    last one's hidden states, (hidden size,).

    Args:
        runner: the model runner.
        config: vLLM's configuration.
        tokens: token ids of the whole prompt.
        start: number of tokens whose KV is in the blocks.
        blocks: block table of the prompt.
    """
    device, num_rows, total = runner.device, len(tokens) - start, len(tokens)
    size = config.cache_config.block_size
    table = torch.tensor([blocks], dtype=torch.int32, device=device)
    positions = torch.arange(start, total, device=device)
    slots = table[0, positions // size].long() * size + positions % size
    starts = torch.tensor([0, num_rows], dtype=torch.int32)
    lengths = torch.tensor([total], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        num_reqs=1,
        num_actual_tokens=num_rows,
        max_query_len=num_rows,
        max_seq_len=total,
        block_table_tensor=table,
        slot_mapping=slots,
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
    mapping = {layer.layer_name: slots for layer in attention_layers(config)}
    with set_forward_context(
        metadata, config, num_tokens=num_rows, slot_mapping=mapping, skip_compiled=True
    ):
        hidden: torch.Tensor = model(input_ids=ids, positions=positions)
    return hidden[-1]
