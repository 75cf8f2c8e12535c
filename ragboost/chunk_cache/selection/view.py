"""Measurements for selection policies: the question's attention to the reused KV, and freshly
computed layers. Each is a partial pass, run on demand, piece by piece, and cached."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    exact_mask,
)
from ragboost.chunk_cache.model.attention.dense import attention_weights, weighted_values
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.plan import ForwardPlan, StopForwardError
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.errors import ChunkCacheError

CHECK_LAYER = 1
"""The layer that CacheBlend and A3 examine, from 0: the first whose keys depend on preceding
text."""
_ROWS = 64
"""Rows whose attention weights are held in memory at once."""
QUESTION_ROWS = 64
"""Question rows that are read: of a longer one as many of its first and of its last ones. All that
follows the documents counts as the question, instructions and moved text included, and each row
goes through all layers, once more than in the prefill."""


@dataclass(frozen=True, slots=True)
class FreshLayer:
    """One layer computed for every token, compared with its reused KV."""

    key_change: torch.Tensor  # squared distance between computed and reused, (tokens,)
    value_change: torch.Tensor
    attention: torch.Tensor  # of the question, summed over heads and question tokens, (tokens,)


class SelectionView:
    def __init__(
        self,
        model: ReusableModel,
        assembly: Assembly,
        *,
        budget: int,
        backend: AttentionBackend | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.assembly = assembly
        self.budget = budget
        self.candidates = assembly.candidates  # positions to choose from, ascending
        self.num_layers = model.num_layers
        self._model, self._backend, self._pace = model, backend, pace or Pace()
        self._attention: torch.Tensor | None = None
        self._fresh: FreshLayer | None = None

    def question_attention(self) -> Steps[torch.Tensor]:
        """Return the question's attention over the reused KV to each token in each layer, (layers,
        tokens), summed over heads and `QUESTION_ROWS`."""
        if self._attention is None:
            visible = self.assembly.source != TokenSource.MISSING
            question = self._question_rows()
            visible[question] = True
            mass = torch.zeros(self.num_layers, len(visible), device=visible.device)
            for rows in self._pace.pieces(question):
                recorder = _WeightRecorder(self.num_layers)
                self._run(rows, ForwardPlan(rows, backend=recorder, visible=visible))
                mass += torch.stack(recorder.mass)
                yield len(rows)
            self._attention = self._model.ranks.sum(mass)
        return self._attention

    def mean_question_attention(self) -> Steps[torch.Tensor]:
        return (yield from self.question_attention()).mean(0)

    def fresh_layer(self) -> Steps[FreshLayer]:
        """Return layer `CHECK_LAYER` computed for all tokens that are not exact. Its KV and that of
        earlier layers is an ordinary pass's, and replaces the reused KV (A3 eq. 4), also of tokens
        that are not selected."""
        if self._fresh is None:
            rows = torch.nonzero(self.assembly.source != TokenSource.EXACT).flatten()
            self._fresh = yield from self._fresh_pass(rows, CHECK_LAYER)
            self._attention = None
        return self._fresh

    def deeper_layer(self, positions: torch.Tensor) -> Steps[FreshLayer]:
        """Return the next layer for some candidates, the missing tokens and the question over the
        reused KV of the others, whose change is 0. KV is replaced as in `fresh_layer`."""
        yield from self.fresh_layer()
        rows = self.assembly.rows_to_compute(positions)
        return (yield from self._fresh_pass(rows, CHECK_LAYER + 1))

    def _question_rows(self) -> torch.Tensor:
        total = len(self.assembly.tokens)
        rows = torch.arange(self.assembly.question, total, device=self._model.device)
        half = QUESTION_ROWS // 2
        return rows if len(rows) <= 2 * half else torch.cat((rows[:half], rows[-half:]))

    def _run(self, rows: torch.Tensor, plan: ForwardPlan) -> None:
        tokens = [self.assembly.tokens[position] for position in rows.tolist()]
        self._model.forward(tokens, self.assembly.cache, plan=plan)

    def _fresh_pass(self, rows: torch.Tensor, layer: int) -> Steps[FreshLayer]:
        """Compute a layer for some rows, and replace their KV up to it."""
        if self._model.num_layers <= layer:
            raise ChunkCacheError(
                f"{self._model.name} has {self._model.num_layers} layers; this policy needs "
                f"layer {layer}"
            )
        question, old = self.assembly.question, self.assembly.cache.layers[layer]
        reused = old.keys[:, :, rows], old.values[:, :, rows]  # copies
        attention = torch.zeros(len(self.assembly.tokens), device=rows.device)

        def observe(number: int, inputs: AttentionInputs) -> None:
            if number == layer:
                num_rows = int((inputs.positions >= question).sum())
                attention.add_(attention_mass(inputs, num_rows=num_rows))
                raise StopForwardError

        share = (layer + 1) / self.num_layers
        for piece in self._pace.pieces(rows, share=share):
            self._run(piece, ForwardPlan(piece, backend=self._backend, observe=observe))
            yield max(1, round(share * len(piece)))
        keys, values = (torch.zeros_like(attention) for _ in reused)
        keys[rows] = _squared_distance(old.keys[:, :, rows], reused[0])
        values[rows] = _squared_distance(old.values[:, :, rows], reused[1])
        return FreshLayer(*self._model.ranks.sum(torch.stack((keys, values, attention))))


def _squared_distance(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return (new - old).float().square().sum((0, 1, 3))


class _WeightRecorder:
    """An attention backend that records each layer's summed weights, (keys,), to the last one."""

    def __init__(self, num_layers: int) -> None:
        self.mass: list[torch.Tensor] = []
        self._num_layers = num_layers

    def supports(self, inputs: AttentionInputs) -> bool:
        return True

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        mass, parts = torch.zeros(inputs.num_keys, device=inputs.query.device), []
        for weights in _weights(inputs):
            mass += weights.sum((0, 1, 2))
            parts.append(weighted_values(weights, inputs.value))
        self.mass.append(mass)
        if len(self.mass) == self._num_layers:
            raise StopForwardError
        return torch.cat(parts, 2)


def attention_mass(inputs: AttentionInputs, *, num_rows: int | None = None) -> torch.Tensor:
    """Return the attention of the last rows (None: all) to each key, summed, (keys,)."""
    mass = torch.zeros(inputs.num_keys, device=inputs.key.device)
    first = 0 if num_rows is None else inputs.query.shape[2] - num_rows
    for weights in _weights(inputs, first=first):
        mass += weights.nan_to_num().sum((0, 1, 2))  # a window may mask a row entirely
    return mass


def _weights(inputs: AttentionInputs, *, first: int = 0) -> Iterator[torch.Tensor]:
    for row in range(first, inputs.query.shape[2], _ROWS):
        part = slice(row, row + _ROWS)
        mask = exact_mask(
            inputs.positions[part], inputs.num_keys, window=inputs.window, visible=inputs.visible
        )
        yield attention_weights(inputs, inputs.query[:, :, part], inputs.key, mask)
