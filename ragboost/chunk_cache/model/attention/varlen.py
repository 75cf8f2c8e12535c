"""FlashAttention over runs of adjacent rows: a run [a, b) is the last b - a tokens of a sequence of
b keys, so a bottom-right causal mask is exact. Pays from 16 tokens on: select in blocks."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from ragboost.chunk_cache.model.attention.backend import AttentionInputs

PAGE = 256
"""Keys per page; FlashAttention requires a multiple of 256."""


class Runs(NamedTuple):
    """Runs of adjacent rows: run i has rows [offsets[i], offsets[i + 1]) and keys [0, ends[i])."""

    offsets: torch.Tensor  # (runs + 1,) int32
    ends: torch.Tensor  # (runs,) int32

    @property
    def longest(self) -> int:
        return int((self.offsets[1:] - self.offsets[:-1]).max())


def find_runs(positions: torch.Tensor) -> Runs:
    breaks = torch.nonzero(positions[1:] - positions[:-1] != 1).flatten() + 1
    last = torch.tensor([len(positions)], device=positions.device)
    offsets = torch.cat((torch.zeros_like(last), breaks, last))
    ends = positions[offsets[1:] - 1] + 1
    return Runs(offsets.int(), ends.int())


class VarlenAttention:
    """`torch.nn.attention.varlen`, on an accelerator in half precision."""

    def supports(self, inputs: AttentionInputs) -> bool:
        if not inputs.query.is_cuda or inputs.query.dtype not in (torch.float16, torch.bfloat16):
            return False
        return inputs.softcap is None and inputs.sinks is None and inputs.visible is None

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn  # NOTE: torch >= 2.10, accelerators only

        runs = find_runs(inputs.positions)
        pages = -(-inputs.num_keys // PAGE)
        room = (0, 0, 0, 0, 0, pages * PAGE - inputs.num_keys)
        key, value = (
            F.pad(tensor[0].transpose(0, 1), room).view(pages, PAGE, *tensor.shape[1::2])
            for tensor in (inputs.key, inputs.value)
        )
        table = torch.arange(pages, dtype=torch.int32, device=key.device)
        left = -1 if inputs.window is None else inputs.window - 1
        out = varlen_attn(
            inputs.query[0].transpose(0, 1).contiguous(),
            key,
            value,
            runs.offsets,
            None,
            runs.longest,
            pages * PAGE,
            scale=inputs.scaling,
            window_size=(left, 0),
            enable_gqa=inputs.query.shape[1] != inputs.key.shape[1],
            seqused_k=runs.ends,
            block_table=table.expand(len(runs.ends), -1).contiguous(),
        )
        return out.transpose(0, 1)[None]
