"""Cache-Craft on top of chunk reuse: choose a variant of each chunk, fix it by its influence, stop
early where the question does not look, and store new variants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ragboost.chunk_cache.core.library import is_exact
from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.model.plan import Observer
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.keys import PrefixDigests, chunk_key
from ragboost.errors import UnsupportedModelError
from research.craft.change import kv_change
from research.craft.focus import FocusObserver
from research.craft.overhead import num_to_fix
from research.craft.plan import InferencePlan, PlannedChunk
from research.craft.row_hooks import RowDropper, install_row_hooks
from research.craft.variants import Order, Variant, VariantChoice, Variants


@dataclass(frozen=True, slots=True)
class CraftPrefill:
    """A prompt that is ready for decoding."""

    plan: InferencePlan  # the inference plan
    prefill: Prefill  # the result; it counts tokens that were computed in the first layer
    # indices of the chunks that the question focuses on; None if not settled, or if `early_stop` is
    # off
    focused: frozenset[int] | None
    # layer after which the other chunks were not computed, from 1; None: all were
    stopped_after: int | None
    num_saved: int  # tokens x layers that this saved
    num_new: int  # number of new variants


class PlannedTokens(SelectionPolicy):
    """Selection of the tokens of a plan, at any requested ratio."""

    def __init__(self, plan: InferencePlan) -> None:
        self._fixed = [position for chunk in plan.chunks for position in chunk.fixed]

    def num_tokens(self, assembly: Assembly, asked: float) -> int:
        return len(self._fixed)

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        fixed = torch.tensor(self._fixed, device=view.candidates.device)
        return torch.isin(view.candidates, fixed).float()


class CraftReuse:
    """Reuse of the chunk variants that earlier requests stored. Safe to use from several threads.

    Args:
        variants: the variants; None: N x M as in the paper, whose KV is evicted with them.
        alpha: scale of the recomputation (eq. 12); see `eval.alpha.tune`.
        literal: use CCI and algorithm 1 as printed.
        cautious: distrust variants that were computed with no chunk before them, see
            `Variants.choose`.
        order: order of the tokens to fix, see `Order`. "change" compares every new variant of a
            chunk with its other variants and with its plain KV, which costs an extra pass over the
            chunk for its first variant.
        early_stop: skip later layers of chunks that the question does not focus on.

    Raises:
        UnsupportedModelError: the model cannot drop rows, which `early_stop` needs.
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
        self.variants = Variants(on_evict=reuse.store.discard) if variants is None else variants
        self.alpha, self.literal, self.early_stop = alpha, literal, early_stop
        self.cautious, self.order = cautious, order
        adapter = reuse.adapter
        if early_stop and not install_row_hooks(adapter.model, num_layers=adapter.num_layers):
            raise UnsupportedModelError(
                f"{adapter.name} has no list of {adapter.num_layers} decoder layers; "
                "early_stop must be off"
            )

    def plan(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], question: Sequence[int]
    ) -> InferencePlan:
        """Return the plan of a request without counting it as a use."""
        return self.plan_with_kv(system, chunks, question)[0]

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
            learn: count the use of variants, and store new ones.
        """
        self.reuse.precompute(system, [])
        plan, stored = self.plan_with_kv(system, chunks, question)
        tokens = [*system, *(token for chunk in chunks for token in chunk), *question]
        spans = [(chunk.start, chunk.stop) for chunk in plan.chunks]
        whole = [n for n, chunk in enumerate(plan.chunks) if chunk.is_whole and not chunk.is_exact]
        influences = InfluenceObserver(tokens, spans, watched=whole) if learn else None
        focus = self._focus(plan, spans, whole) if self.early_stop else None
        result = self.reuse.prefill(
            system,
            chunks,
            question,
            policy=PlannedTokens(plan),
            stored=stored,
            observe=observe_both(influences, focus),
        )
        if focus is not None and focus.layer is not None:
            limit = min(spans[number][0] for number in focus.dropped)
            result = replace(result, num_publishable=min(result.num_publishable, limit))
        num_new = 0
        if influences is not None:
            for chunk in plan.hits:
                if chunk.choice is not None:
                    self.variants.use(chunk.choice)
            num_new = self._store_variants(system, tokens, plan, result, influences)
        return CraftPrefill(
            plan=plan,
            prefill=result,
            focused=focus.focused if focus else None,
            stopped_after=focus.layer if focus else None,
            num_saved=focus.num_saved if focus else 0,
            num_new=num_new,
        )

    def plan_with_kv(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], question: Sequence[int]
    ) -> tuple[InferencePlan, list[ChunkKV | None]]:
        """Return the plan of a request and the KV of its chunks, for `ChunkReuse.prefill`."""
        planned, stored = [], []
        before, prefix = list(system), list[str]()
        length = len(system) + sum(map(len, chunks)) + len(question)
        regime = self.reuse.adapter.regime(length)
        for chunk in chunks:
            name = chunk_name(chunk)
            choice, kv = self._choose(name, prefix)
            start = len(before)
            exact = kv is not None and is_exact(kv, PrefixDigests(before), start, regime=regime)
            fixed: list[int] = []
            if choice is not None and not exact:
                count = num_to_fix(choice.overhead, len(chunk))
                fixed = sorted(start + token for token in choice.order[:count])
            stop = start + len(chunk)
            planned.append(PlannedChunk(name, start, stop, choice, exact, tuple(fixed)))
            stored.append(kv)
            before += chunk
            prefix += [name] if chunk else []
        return InferencePlan(tuple(planned), len(system), len(question)), stored

    def _choose(
        self, name: str, prefix: Sequence[str]
    ) -> tuple[VariantChoice | None, ChunkKV | None]:
        """Return the best variant whose KV is still stored."""
        while True:
            choice = self.variants.choose(
                name,
                prefix,
                alpha=self.alpha,
                literal=self.literal,
                cautious=self.cautious,
                order=self.order,
            )
            if choice is None:
                return None, None
            kv = self.reuse.store.get(choice.variant.key)
            if kv is not None:
                return choice, kv
            self.variants.forget(choice.variant.key)

    def _focus(
        self, plan: InferencePlan, spans: Sequence[tuple[int, int]], whole: Sequence[int]
    ) -> FocusObserver:
        partly = [n for n, chunk in enumerate(plan.chunks) if chunk.fixed and n not in whole]
        return FocusObserver(
            spans,
            reused=partly,
            num_question=plan.num_question,
            num_layers=self.reuse.adapter.num_layers,
            literal=self.literal,
        )

    def _store_variants(
        self,
        system: Sequence[int],
        tokens: Sequence[int],
        plan: InferencePlan,
        result: Prefill,
        influences: InfluenceObserver,
    ) -> int:
        """Store each chunk that was computed entirely as a variant of this context."""
        num_new = 0
        for number, influence in influences.influences().items():
            chunk = plan.chunks[number]
            recipe = f"context {' '.join(influence.context)}"
            key = chunk_key(
                replace(self.reuse.library.identity, recipe=recipe),
                regime=self.reuse.library.regime,
                tokens=tokens[chunk.start : chunk.stop],
            )
            kv = self.reuse.extract(
                result.cache,
                tokens,
                chunk.start,
                chunk.stop,
                is_exact=chunk.stop <= result.num_publishable,
            )
            if not self.reuse.store.put(key, replace(kv, influence=influence)):
                continue
            others = [variant.key for variant in self.variants.of(chunk.name)]
            if self.variants.add(Variant(chunk.name, key, influence)):
                num_new += 1
                if self.order == "change":
                    self._learn_change(system, chunk.name, kv, others)
        return num_new

    def _learn_change(
        self, system: Sequence[int], name: str, kv: ChunkKV, others: Sequence[str]
    ) -> None:
        """Compare a new variant with all other variants of the chunk and its plain KV."""
        stored = [self.reuse.store.get(key) for key in others]
        for other in (self.reuse.plain(system, kv.tokens), *stored):
            if other is not None:
                change = kv_change(self.reuse.adapter, kv, other)
                self.variants.learn(name, change.tolist())


def observe_both(first: Observer | None, focus: FocusObserver | None) -> Observer | None:
    """Return an observer that calls both; the second one decides which rows are kept."""
    if focus is None:
        return first

    def choose(layer: int, inputs: AttentionInputs) -> torch.Tensor | None:
        if first is not None:
            first(layer, inputs)
        return focus(layer, inputs)

    return RowDropper(choose)
