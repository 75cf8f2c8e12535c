"""Measure inter- and intra-attention of chunks during a forward pass (Cache-Craft eq. 3-5, 9, 10),
in blocks of rows: no matrix of prompt length squared is ever in memory."""

from collections.abc import Sequence

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import attention_weights
from ragboost.chunk_cache.store.influence import Influence, chunk_name

ROWS = 64
"""Rows whose attention weights are held in memory at once."""


class InfluenceObserver:
    """An observer that computes the `Influence` on the `watched` ones of ascending, disjoint
    chunks, all of whose rows must be in the pass."""

    def __init__(
        self, tokens: Sequence[int], chunks: Sequence[tuple[int, int]], *, watched: Sequence[int]
    ) -> None:
        self._chunks = list(chunks)
        self._names = [chunk_name(tokens[start:stop]) for start, stop in chunks]
        self._watched = [number for number in watched if chunks[number][0] < chunks[number][1]]
        self._num_layers = 0
        # Per watched chunk, summed over layers: attention of each token to each preceding chunk,
        # and to earlier tokens of its own chunk.
        self._inter: dict[int, torch.Tensor] = {}
        self._intra: dict[int, float] = dict.fromkeys(self._watched, 0.0)

    def __call__(self, layer: int, inputs: AttentionInputs) -> None:
        self._num_layers += 1
        owner = torch.full((inputs.num_keys,), len(self._chunks), device=inputs.key.device)
        for number, (start, stop) in enumerate(self._chunks):
            owner[start:stop] = number
        for number in self._watched:
            start, stop = self._chunks[number]
            first = int(torch.searchsorted(inputs.positions, start))
            parts = []
            for row in range(first, first + stop - start, ROWS):
                rows = slice(row, min(row + ROWS, first + stop - start))
                mass, within = self._block(inputs, rows, owner, number)
                parts.append(mass)
                self._intra[number] += within
            found = torch.cat(parts)
            known = number in self._inter
            self._inter[number] = found + self._inter[number] if known else found

    def _block(
        self, inputs: AttentionInputs, rows: slice, owner: torch.Tensor, number: int
    ) -> tuple[torch.Tensor, float]:
        """Return a block's attention to each preceding chunk, (rows, chunks), and the summed
        attention to earlier tokens of their own chunk."""
        start, stop = self._chunks[number]
        positions = inputs.positions[rows]
        mask = exact_mask(positions, stop, window=inputs.window, visible=inputs.visible)
        weights = attention_weights(inputs, inputs.query[:, :, rows], inputs.key[:, :, :stop], mask)
        mean = weights[0].mean(0)  # (rows, keys)
        mass = torch.zeros(len(positions), len(self._chunks) + 1, device=mean.device)
        mass.index_add_(1, owner[:stop], mean)
        diagonal = mean.gather(1, positions[:, None]).sum()
        within = mean[:, start:].sum() - diagonal
        return mass[:, :number].double(), float(within)

    def influences(self) -> dict[int, Influence]:
        return {number: self._influence(number) for number in self._watched}

    def _influence(self, number: int) -> Influence:
        inter = self._inter[number] / self._num_layers  # (tokens, chunks before)
        length = len(inter)
        sizes = [stop - start for start, stop in self._chunks[:number]]
        kept = [index for index, size in enumerate(sizes) if size > 0]
        sums = [float(inter[:, index].sum()) for index in kept]
        order = inter.sum(1).argsort(descending=True, stable=True)
        return Influence(
            context=tuple(self._names[index] for index in kept),
            inter=tuple(sums),
            a=sum(value / (length * sizes[i]) for value, i in zip(sums, kept, strict=True)),
            b=self._intra[number] / self._num_layers / length**2,
            order=tuple(order.tolist()),
        )
