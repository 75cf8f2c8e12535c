"""Cache-Craft on top of chunk reuse: pick a version of each chunk, fix it by what its context did,
stop early where the question does not look, keep new versions.

Knows the parts and their order. What is computed and how is `ChunkReuse`'s business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ragboost.chunk_cache.assemble import Assembly
from ragboost.chunk_cache.craft.change import kv_change
from ragboost.chunk_cache.craft.formulas import num_to_fix
from ragboost.chunk_cache.craft.gather import Gather
from ragboost.chunk_cache.craft.influence import Order, chunk_name
from ragboost.chunk_cache.craft.plan import InferencePlan, PlannedChunk
from ragboost.chunk_cache.craft.variants import Pick, Variant, Variants
from ragboost.chunk_cache.craft.watch import FocusWatch
from ragboost.chunk_cache.kv.keep import kv_of
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.model.hook import both
from ragboost.chunk_cache.model.narrow import install_narrowing
from ragboost.chunk_cache.prefill import Prefill
from ragboost.chunk_cache.reuse import ChunkReuse, is_exact
from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.errors import ChunkLostError


@dataclass(frozen=True, slots=True)
class CraftPrefill:
    """A prompt that is ready to be decoded, and how it came to be.

    Attributes:
        plan: what was to be done.
        prefill: what was done; its counts are of tokens that were computed in the first layer.
        focused: numbers of the chunks that the question looks at; None: not settled, or not asked.
        stopped_after: the layer after which the other chunks were left as they were, counted from
            1; None: they were not.
        num_saved: tokens x layers that this saved.
        num_new: versions of chunks that were kept.
    """

    plan: InferencePlan
    prefill: Prefill
    focused: frozenset[int] | None
    stopped_after: int | None
    num_saved: int
    num_new: int


class Follow(Policy):
    """The tokens that a plan names, whatever ratio is asked for."""

    def __init__(self, plan: InferencePlan) -> None:
        self._fixed = [position for chunk in plan.chunks for position in chunk.fixed]

    def num_tokens(self, assembly: Assembly, asked: float) -> int:
        return len(self._fixed)

    def score(self, view: SelectionView) -> torch.Tensor:
        fixed = torch.tensor(self._fixed, device=view.candidates.device)
        return torch.isin(view.candidates, fixed).float()


class CraftReuse:
    """Chunk reuse in the versions that earlier requests left behind. Safe to use from several
    threads.

    Args:
        reuse: the model and the store of the KV.
        variants: what is known of the KV; None: N x M of the paper, whose KV leaves the store with
            them.
        alpha: scale of what is computed again (eq. 12); see `alpha.tune`.
        literal: the printed forms of CCI and Alg. 1.
        cautious: distrust versions that were computed with no chunk before them, see
            `Variants.pick`.
        order: what makes a token worth fixing, see `Order`. "change" compares every new version of
            a chunk with its other versions and with its plain KV, which costs one more pass of the
            chunk by itself with its first version.
        early_stop: leave out later layers of chunks that the question does not look at.
    """

    def __init__(
        self,
        reuse: ChunkReuse,
        *,
        variants: Variants | None = None,
        alpha: float = 1.0,
        literal: bool = False,
        cautious: bool = False,
        order: Order = "mass",
        early_stop: bool = True,
    ) -> None:
        self.reuse = reuse
        self.variants = Variants(on_drop=reuse.store.discard) if variants is None else variants
        self.alpha, self.literal, self.early_stop = alpha, literal, early_stop
        self.cautious, self.order = cautious, order
        if early_stop:
            install_narrowing(reuse.adapter.model, num_layers=reuse.adapter.num_layers)

    def plan(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], question: Sequence[int]
    ) -> InferencePlan:
        """Say what a request would take and compute. Uses nothing up, counts nothing."""
        return self.take(system, chunks, question)[0]

    def prefill(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        learn: bool = True,
    ) -> CraftPrefill:
        """Fill the KV of a prompt and return the logits of its last token.

        Args:
            system, chunks, question: token ids; the question has at least one.
            learn: count the use of versions, and keep new ones.

        Raises:
            ChunkCacheError: no question.
        """
        self.reuse.precompute(system, [])
        plan, stored = self.take(system, chunks, question)
        tokens = [*system, *(token for chunk in chunks for token in chunk), *question]
        spans = [(chunk.start, chunk.stop) for chunk in plan.chunks]
        whole = [n for n, chunk in enumerate(plan.chunks) if chunk.is_whole and not chunk.is_exact]
        gather = Gather(tokens, spans, watched=whole) if learn else None
        watch = self._watch(plan, spans, whole) if self.early_stop else None
        result = self.reuse.prefill(
            system,
            chunks,
            question,
            policy=Follow(plan),
            stored=stored,
            observe=both(gather, watch),
        )
        if watch is not None and watch.layer is not None:
            limit = min(spans[number][0] for number in watch.dropped)
            result = replace(result, num_publishable=min(result.num_publishable, limit))
        num_new = 0
        if gather is not None:
            self._use(plan)
            num_new = self._keep(system, tokens, plan, result, gather)
        return CraftPrefill(
            plan=plan,
            prefill=result,
            focused=watch.focused if watch else None,
            stopped_after=watch.layer if watch else None,
            num_saved=watch.num_saved if watch else 0,
            num_new=num_new,
        )

    def take(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], question: Sequence[int]
    ) -> tuple[InferencePlan, list[ChunkKV | None]]:
        """Return the plan of a request and the KV that it names, for `ChunkReuse.prefill`."""
        planned, stored = [], []
        before, prefix = list(system), list[str]()
        for chunk in chunks:
            name = chunk_name(chunk)
            pick, kv = self._pick(name, prefix)
            exact = is_exact(kv, before)
            start = len(before)
            fixed: list[int] = []
            if pick is not None and not exact:
                count = num_to_fix(pick.overhead, len(chunk))
                fixed = sorted(start + token for token in pick.order[:count])
            stop = start + len(chunk)
            planned.append(PlannedChunk(name, start, stop, pick, exact, tuple(fixed)))
            stored.append(kv)
            before += chunk
            prefix += [name] if chunk else []
        return InferencePlan(tuple(planned), len(system), len(question)), stored

    def _pick(self, name: str, prefix: Sequence[str]) -> tuple[Pick | None, ChunkKV | None]:
        """Return the best version whose KV is still there."""
        while True:
            pick = self.variants.pick(
                name,
                prefix,
                alpha=self.alpha,
                literal=self.literal,
                cautious=self.cautious,
                order=self.order,
            )
            if pick is None:
                return None, None
            kv = self.reuse.store.get(pick.variant.key)
            if kv is not None:
                return pick, kv
            self.variants.forget(pick.variant.key)

    def _watch(
        self, plan: InferencePlan, spans: Sequence[tuple[int, int]], whole: Sequence[int]
    ) -> FocusWatch:
        partly = [
            number
            for number, chunk in enumerate(plan.chunks)
            if chunk.fixed and number not in whole
        ]
        return FocusWatch(
            spans,
            reused=partly,
            num_question=plan.num_question,
            num_layers=self.reuse.adapter.num_layers,
            literal=self.literal,
        )

    def _use(self, plan: InferencePlan) -> None:
        for chunk in plan.hits:
            if chunk.pick is not None:
                self.variants.use(chunk.pick)

    def _keep(
        self,
        system: Sequence[int],
        tokens: Sequence[int],
        plan: InferencePlan,
        result: Prefill,
        gather: Gather,
    ) -> int:
        """Keep each chunk that was computed whole as a version of this context."""
        num_new = 0
        for number, influence in gather.influences().items():
            chunk = plan.chunks[number]
            span = (chunk.start, chunk.stop)
            recipe = f"context {' '.join(influence.context)}"
            key = self.reuse.chunks.key(system, tokens[chunk.start : chunk.stop], recipe=recipe)
            kv = kv_of(
                self.reuse.adapter, tokens, result, span=span, num_exact=result.num_publishable
            )
            if not self.reuse.store.put(key, replace(kv, influence=influence)):
                continue
            others = [variant.key for variant in self.variants.of(chunk.name)]
            if self.variants.add(Variant(chunk.name, key, influence)):
                num_new += 1
                if self.order == "change":
                    self._compare(system, chunk.name, kv, others)
        return num_new

    def _compare(
        self, system: Sequence[int], name: str, kv: ChunkKV, others: Sequence[str]
    ) -> None:
        """Learn what differs between a new version and all that there was of the chunk."""
        stored = [self.reuse.store.get(key) for key in others]
        for other in (self.reuse.chunks.plain(system, kv.tokens), *stored):
            if other is None:
                continue
            try:
                change = kv_change(self.reuse.adapter, kv, other)
            except ChunkLostError:  # its file is broken and gone
                continue
            self.variants.learn(name, change.tolist())
