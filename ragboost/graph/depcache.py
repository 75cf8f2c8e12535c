"""Compute the KV of prompts with dependency attention, reusing subgraphs of earlier prompts
(DepCache algorithm 2). Does not know texts or graphs."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.eviction import LACR
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import Pace, Steps, at_once
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import KeyRotation
from ragboost.errors import ChunkCacheError
from ragboost.graph.attention import TreeAttention
from ragboost.graph.layout import DepPrompt, Layout, Positions, lay_out
from ragboost.graph.tree_cache import TreeCache, TreeRequest


@dataclass(frozen=True, slots=True)
class DepKV:
    """A prompt that is ready for decoding at slot `len(layout)`, position
    `layout.next_position`."""

    cache: RequestCache  # by slot of the layout, owned by the request
    logits: torch.Tensor  # of the last token, (vocabulary,)
    layout: Layout
    computed: torch.Tensor  # slots whose KV was not stored, ascending

    @property
    def num_reused(self) -> int:
        return len(self.layout) - len(self.computed)


class TokenPool:
    """Rows of KV, each with the position its keys are rotated to."""

    def __init__(self, adapter: ModelAdapter, num_rows: int) -> None:
        self._adapter = adapter
        self._layers = [
            (_rows_like(layer.keys, num_rows), _rows_like(layer.values, num_rows))
            for layer in adapter.empty_cache(1).layers
        ]
        self._positions = torch.zeros(num_rows, dtype=torch.long, device=adapter.device)

    def store(
        self, cache: RequestCache, *, slots: torch.Tensor, rows: torch.Tensor, at: torch.Tensor
    ) -> None:
        """Copy KV from slots of a cache, its keys at positions `at`, to rows, (tokens,) each."""
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
    ) -> None:
        """Copy KV of any rows to a cache, rotating keys to their new positions (DepCache eq. 5);
        bit for bit if none changes."""
        stored = self._positions[rows]
        rotation = None
        if not bool((stored == at).all()):
            frequencies = self._adapter.frequencies(length)
            rotation = KeyRotation(
                stored=stored,
                target=at,
                old=[(frequencies, len(rows))],
                new=frequencies,
                layouts=self._adapter.layouts,
            )
        for index, (layer, parts) in enumerate(zip(cache.layers, self._layers, strict=True)):
            keys, values = (part.index_select(2, rows) for part in parts)
            if rotation is not None:
                keys = rotation.apply(keys, index)
            layer.keys.index_copy_(2, slots, keys)
            layer.values.index_copy_(2, slots, values)


def _rows_like(tensor: torch.Tensor, num_rows: int) -> torch.Tensor:
    return tensor.new_empty(1, tensor.shape[1], num_rows, tensor.shape[3])


class DepCache:
    """Dependency attention on one model, safe to use from several threads. With the positions
    `depth`, reused KV equals computed KV. `capacity_tokens` 0: nothing is stored."""

    def __init__(
        self,
        adapter: ModelAdapter,
        *,
        capacity_tokens: int = 65_536,
        positions: Positions = "depth",
    ) -> None:
        self.adapter = adapter
        self.positions = positions
        self._lock = threading.RLock()
        self._pool: TokenPool | None = None
        self.tree: TreeCache | None = None  # None: nothing is stored
        if capacity_tokens:
            self.tree = TreeCache(capacity_tokens, LACR())
            self._pool = TokenPool(adapter, capacity_tokens)

    def layout(self, prompt: DepPrompt) -> Layout:
        return lay_out(prompt, positions=self.positions).to(self.adapter.device)

    def look_ahead(self, waiting: Callable[[], Iterable[tuple[Layout, str]]]) -> None:
        """Set a function that returns layout and salt of each waiting request, the next first."""
        if self.tree is not None:
            self.tree.waiting = lambda: [self._request(*request) for request in waiting()]

    def compute_depkv(self, prompt: DepPrompt | Layout, *, salt: str = "") -> DepKV:
        return at_once(self.steps(prompt, salt=salt))

    def steps(
        self,
        prompt: DepPrompt | Layout,
        *,
        salt: str = "",
        into: RequestCache | None = None,
        pace: Pace | None = None,
    ) -> Steps[DepKV]:
        """Compute the missing KV of a prompt and store it; no lock is held between steps. `into`
        needs a slot for each token and finite values."""
        pace = pace or Pace()
        layout = self.layout(prompt) if isinstance(prompt, DepPrompt) else prompt
        cache = self.adapter.empty_cache(len(layout)) if into is None else into
        missing = self._load(layout, cache, salt)
        logits = yield from self._compute(layout, cache, missing, pace)
        self._store(layout, cache, salt)
        assert logits is not None, "the task is computed"
        return DepKV(cache, logits, layout, missing)

    def precompute(
        self, system: Sequence[int], paths: Sequence[Sequence[int]], *, salt: str = ""
    ) -> int:
        """Store missing relation paths after a system text, in one pass, if they fit into the cache
        together; return the number of computed tokens."""
        layout = self.layout(DepPrompt.of(system, paths, (0,)))
        if self.tree is None or layout.task > self.tree.num_rows:
            return 0
        cache = self.adapter.empty_cache(len(layout))
        missing = self._load(layout, cache, salt)
        rows = missing[missing < layout.task]
        at_once(self._compute(layout, cache, rows, Pace()))
        self._store(layout, cache, salt)
        return len(rows)

    def generate_with_depkv(
        self, kv: DepKV, *, max_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> list[int]:
        """Decode an answer greedily, up to a stop token, which is not part of it, from a copy."""
        if max_tokens < 1:
            raise ChunkCacheError(f"max_tokens must be at least 1, got {max_tokens}")
        return self.adapter.decode(
            kv.cache.clone(),
            kv.logits,
            position=kv.layout.next_position,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
        )

    def _request(self, layout: Layout, salt: str) -> TreeRequest:
        return TreeRequest((salt, self.adapter.regime(len(layout))), layout)

    def _load(self, layout: Layout, cache: RequestCache, salt: str) -> torch.Tensor:
        missing = torch.ones(len(layout), dtype=torch.bool)
        if self.tree is not None and self._pool is not None:
            with self._lock:
                match = self.tree.match(self._request(layout, salt))
                if match.slots:
                    slots = self._index(match.slots)
                    self._pool.load(
                        cache,
                        slots=slots,
                        rows=self._index(match.rows),
                        at=layout.positions[slots],
                        length=len(layout),
                    )
            missing[match.slots] = False
        return missing.nonzero().flatten()

    def _store(self, layout: Layout, cache: RequestCache, salt: str) -> None:
        if self.tree is None or self._pool is None:
            return
        with self._lock:
            # Matched again: another thread may have stored or evicted since.
            request = self._request(layout, salt)
            places = self.tree.insert(request, self.tree.match(request))
            with ExitStack() as on_failure:  # no path may stay without its KV
                on_failure.callback(self.tree.clear)
                if places.slots:
                    slots = self._index(places.slots)
                    rows = self._index(places.rows)
                    self._pool.store(cache, slots=slots, rows=rows, at=layout.positions[slots])
                on_failure.pop_all()

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, device=self.adapter.device)

    def _compute(
        self, layout: Layout, cache: RequestCache, rows: torch.Tensor, pace: Pace
    ) -> Steps[torch.Tensor | None]:
        cache.positions = layout.positions
        logits = None
        for piece in pace.pieces(rows.to(self.adapter.device)):
            plan = ForwardPlan(piece, backend=TreeAttention(layout))
            tokens = [layout.tokens[slot] for slot in piece.tolist()]
            logits = self.adapter.forward(tokens, cache, plan=plan)
            yield len(piece)
        return logits
