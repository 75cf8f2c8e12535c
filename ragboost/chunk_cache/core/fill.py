"""Fill the KV of a prompt from stored chunks, with the selected tokens recomputed.

The result is the KV that the engine takes for its own up to `PromptPlan.stop`. Knows plans, models
and policies. Does not know how an engine lays out its cache.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.measure import ChunkMeasure, measure_last_chunk
from ragboost.chunk_cache.core.prompt_plan import (
    PromptPlan,
    find_chunks,
    plan_prompt,
)
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import is_exact
from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.model.assemble import Assembly, ChunkSpan, TokenSource, assemble
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import Pace
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import together
from ragboost.chunk_cache.model.recompute import rows_to_compute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.policy import choose
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.lru import ChunkStore
from ragboost.errors import UnsupportedModelError


class RowPace(Pace):
    """Pieces of at most so many rows, without rests: the engine's limit for one forward pass.

    Args:
        rows: the limit.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._most = rows

    def limit(self, rows: int | None) -> None:
        """Make the next pieces at most this long, within the limit; None: only within the limit."""
        self.rows = self._most if rows is None else min(rows, self._most)


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """The KV of a prompt up to its plan's `stop`.

    Attributes:
        cache: KV of every token; from `stop` on unspecified.
        selected: positions of the recomputed tokens, ascending.
        counts: the tokens of the prompt by origin.
        measure: measurements of the last chunk; None unless the request asked for them.
    """

    cache: RequestCache
    selected: tuple[int, ...]
    counts: TokenOrigins
    measure: ChunkMeasure | None = None


FillSteps = Generator[int, None, FilledPrompt]
"""A filling in steps; each gives the number of rows that it computed."""


def fill_prompt(
    model: ReusableModel,
    plan: PromptPlan,
    *,
    prefix: ChunkKV | None,
    backend: AttentionBackend | None,
    pace: Pace,
) -> FilledPrompt:
    """Fill a prompt at once, see `fill_steps`."""
    steps = fill_steps(model, plan, prefix=prefix, backend=backend, pace=pace)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            filled: FilledPrompt = done.value
            return filled


def advance(steps: FillSteps, pace: RowPace, *, rows: int | None) -> FilledPrompt | None:
    """Continue a filling for about this many rows; return its result once it has ended.

    Args:
        steps: the filling.
        pace: the one that it was begun with.
        rows: None: to its end.
    """
    left = rows
    least = 0 if rows is None else rows // 4  # no scraps of a few rows
    try:
        while left is None or left > least:
            pace.limit(left)
            count = next(steps)
            left = None if left is None else left - count
    except StopIteration as done:
        filled: FilledPrompt = done.value
        return filled
    return None


def fill_steps(
    model: ReusableModel,
    plan: PromptPlan,
    *,
    prefix: ChunkKV | None,
    backend: AttentionBackend | None,
    pace: Pace,
) -> FillSteps:
    """Assemble the stored KV of a prompt and compute its missing and selected tokens.

    Args:
        model: the model.
        plan: what to reuse.
        prefix: KV of the first `plan.held` tokens; None if there are none.
        backend: attention backend.
        pace: pieces of the computation, one per step; the selection is a step of its own.
    """
    assembly = together(model.ranks, lambda: _assemble(model, plan, prefix))
    num_missing = int((assembly.source == TokenSource.MISSING).sum())

    def compute(rows: torch.Tensor) -> Iterator[int]:
        for piece in pace.pieces(rows):
            begin = assembly.begin(piece)
            tokens = [plan.tokens[position] for position in piece.tolist()]
            forward = ForwardPlan(piece, backend=backend, begin=begin)
            model.forward(tokens, assembly.cache, plan=forward)
            yield len(piece)

    # First the tokens before any approximate one: they are exact then, and the question sees them.
    missing = torch.nonzero(assembly.source == TokenSource.MISSING).flatten()
    lead = missing[missing < (plan.stop if plan.approximate is None else plan.approximate)]
    yield from compute(lead)
    assembly.source[lead] = TokenSource.EXACT
    selected, measure = _select(model, assembly, plan, backend=backend, pace=pace), None
    yield plan.num_looked_at(model.num_layers)
    rows = rows_to_compute(assembly, selected)
    if plan.request.measure:
        start = plan.request.chunks[-1][0]
        yield from compute(rows[rows < start])
        measure = measure_last_chunk(model, assembly, backend=backend)
    else:
        yield from compute(rows[rows < plan.stop])
    num_exact = int((assembly.source == TokenSource.EXACT).sum()) - len(lead)
    num_reused = len(plan.tokens) - num_exact - num_missing - len(selected)
    return FilledPrompt(
        assembly.cache,
        tuple(selected.tolist()),
        TokenOrigins(num_exact, num_reused, len(selected), num_missing),
        measure=measure,
    )


def filled_error(
    model: ReusableModel, tokens: list[int], computed: ChunkKV, *, backend: AttentionBackend | None
) -> float:
    """Return the largest error of KV that went through a store, a plan and a filling, relative to
    the largest value: what fails here, on a new kind of device say, would fail for every request.

    Args:
        model: the engine's model.
        tokens: token ids of a prompt.
        computed: its KV as the engine computes it, on the model's device.
        backend: attention backend of the recomputation.

    Raises:
        UnsupportedModelError: nothing was reused.
    """
    # 0        start                stop      len(tokens)
    # | missing | stored, half of it | missing |
    # |         | recomputed         |         |
    start, stop = len(tokens) // 8, 3 * len(tokens) // 4
    library = ChunkLibrary(ChunkStore(), identity=Identity(model="probe"), regime=computed.regime)
    layers = tuple((k[:, :, start:stop], v[:, :, start:stop]) for k, v in computed.layers)
    part = ChunkKV(tuple(tokens[start:stop]), start, layers, computed.regime, computed.length)
    library.add(library.key(part.tokens), part.to(torch.device("cpu")), is_first=True)
    errors = []
    for policy in ("epic", "gradual"):  # one that looks at no token, and one that looks at all
        request = EngineChunkRequest(((start, stop),), policy=policy, ratio=0.5)
        keys = find_chunks(request, tokens, library)
        plan = plan_prompt(request, tokens, held=0, keys=keys, library=library)
        if isinstance(plan, str):
            raise UnsupportedModelError(f"{model.name} reuses nothing of a stored chunk: {plan}")
        pace = RowPace(len(tokens))
        filled = fill_prompt(model, plan, prefix=None, backend=backend, pace=pace)
        for layer, kv in zip(filled.cache.layers, computed.layers, strict=True):
            for got, wanted in zip((layer.keys, layer.values), kv, strict=True):
                difference = got[:, :, : plan.stop].float() - wanted[:, :, : plan.stop].float()
                errors.append(difference.abs().max() / wanted.float().abs().max())
    return float(torch.stack(errors).max())  # not a number if one is


def _assemble(model: ReusableModel, plan: PromptPlan, prefix: ChunkKV | None) -> Assembly:
    length, held = len(plan.tokens), plan.held
    # The store keeps KV in host memory; everything after this line is on the model's device.
    stored = [None if kv is None else kv.to(model.device) for kv in plan.stored]
    spans = [ChunkSpan(0, held, TokenSource.EXACT, prefix)] if held else []
    for (start, stop), kv in zip(plan.request.chunks, stored, strict=True):
        if kv is not None:
            first = max(start, held)
            exact = is_exact(kv, plan.tokens[:start])
            source = TokenSource.EXACT if exact else TokenSource.APPROXIMATE
            spans.append(ChunkSpan(first, stop, source, kv.without_first(first - start)))
    source_of = torch.zeros(length, dtype=torch.int8)
    sensitivity = torch.zeros(length)
    for span in spans:
        source_of[span.start : span.stop] = span.source
        if span.kv is not None and span.kv.sensitivity is not None:
            sensitivity[span.start : span.stop] = span.kv.sensitivity
    return Assembly(
        plan.tokens,
        assemble(model, spans, length=length),
        source_of.to(model.device),
        list(plan.request.chunks),
        plan.question,
        sensitivity.to(model.device),
        stored,
    )


def _select(
    model: ReusableModel,
    assembly: Assembly,
    plan: PromptPlan,
    *,
    backend: AttentionBackend | None,
    pace: Pace,
) -> torch.Tensor:
    policy, candidates = make_policy(plan.request.policy), assembly.candidates
    if plan.request.measure:
        return candidates[candidates >= plan.request.chunks[-1][0]]
    num_tokens = policy.num_tokens(assembly, plan.request.ratio)
    if num_tokens in (0, len(candidates)):
        return candidates[:num_tokens]
    view = SelectionView(model, assembly, budget=num_tokens, backend=backend, pace=pace)
    scores = policy.score(view)
    return choose(assembly, scores, num_tokens=num_tokens, granularity=plan.request.granularity)
