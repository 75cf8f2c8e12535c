"""Memory for the KV of a fixed number of tokens, taken and given back one by one.

Knows tensors and rows. Does not know which token stands in which row. On a CPU the memory is
reserved at once and committed by the operating system as rows are written.
"""

import torch

from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.rope import angles, rotate


class TokenPool:
    """Rows of KV, each with the position its keys are rotated to.

    Args:
        adapter: the model; gives shapes, and turns keys.
        num_rows: tokens that fit.
    """

    def __init__(self, adapter: ModelAdapter, num_rows: int) -> None:
        self.num_rows = num_rows
        self._adapter = adapter
        device = adapter.device
        self._layers = [
            (
                layer.keys.new_empty(shape_of(layer.keys, num_rows)),
                layer.values.new_empty(shape_of(layer.values, num_rows)),
            )
            for layer in adapter.empty_cache(1).layers
        ]
        self._positions = torch.zeros(num_rows, dtype=torch.long, device=device)

    def store(
        self, cache: RequestCache, *, slots: torch.Tensor, rows: torch.Tensor, at: torch.Tensor
    ) -> None:
        """Copy KV out of a request's cache.

        Args:
            cache: holds the KV.
            slots, rows: of each token in the cache, and here, (tokens,).
            at: the positions that the keys are rotated to, (tokens,).
        """
        self._positions[rows] = at
        for layer, (keys, values) in zip(cache.layers, self._layers, strict=True):
            keys.index_copy_(2, rows, layer.keys.index_select(2, slots))
            values.index_copy_(2, rows, layer.values.index_select(2, slots))

    def load(
        self,
        cache: RequestCache,
        *,
        slots: torch.Tensor,
        rows: torch.Tensor,
        at: torch.Tensor,
        length: int,
        is_turned: bool = True,
    ) -> None:
        """Copy KV into a request's cache, every key turned to its new position (eq. 5). Keys whose
        positions all stay are copied bit for bit.

        Args:
            cache, slots, rows, at: as in `store`.
            length: of the prompt; decides the rotation speeds.
            is_turned: False leaves keys as they are, which is wrong and what the paper's ablation
                measures.
        """
        stored = self._positions[rows]
        is_turned = is_turned and not bool((stored == at).all())
        known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        speeds = self._adapter.frequencies(length) if is_turned else ()
        for index, (layer, (keys, values)) in enumerate(
            zip(cache.layers, self._layers, strict=True)
        ):
            moved = keys.index_select(2, rows)
            if is_turned:
                speed = speeds[index]
                if id(speed) not in known:
                    turn = angles(speed, speed, stored=stored, wanted=at)
                    known[id(speed)] = (turn.cos().float(), turn.sin().float())
                moved = rotate(moved, *known[id(speed)], layout=self._adapter.layouts[index])
            layer.keys.index_copy_(2, slots, moved)
            layer.values.index_copy_(2, slots, values.index_select(2, rows))


def shape_of(tensor: torch.Tensor, num_rows: int) -> tuple[int, int, int, int]:
    """Return the shape of keys or values, (1, kv heads, tokens, head_dim), for other tokens."""
    return (1, tensor.shape[1], num_rows, tensor.shape[3])
