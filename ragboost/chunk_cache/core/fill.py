"""Fill the KV of a prompt from stored chunks, with the selected tokens recomputed. The engine takes
it for its own up to `PromptPlan.stop`. Does not know how an engine lays out its cache."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.request import EngineChunkRequest, TokenOrigins
from ragboost.chunk_cache.model.assemble import Assembly, ChunkSpan, TokenSource, assemble, extract
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import Pace, Steps, at_once
from ragboost.chunk_cache.model.plan import ForwardPlan, Observer
from ragboost.chunk_cache.model.ranks import together
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import Influence
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    cache: RequestCache  # from `stop` on unspecified
    selected: tuple[int, ...]  # positions of the recomputed tokens, ascending
    counts: TokenOrigins
    logits: torch.Tensor | None = None  # of the last computed row, (vocabulary,)
    influence: Influence | None = None  # on the last chunk, if the request asked for it
    seconds: float = 0.0  # that this took, in an engine


FillSteps = Steps[FilledPrompt]


def fill_steps(
    model: ReusableModel,
    plan: PromptPlan,
    *,
    prefix: ChunkKV | None,
    backend: AttentionBackend | None,
    pace: Pace | None = None,
    policy: SelectionPolicy | None = None,
    observe: Observer | None = None,
    into: RequestCache | None = None,
) -> FillSteps:
    """Assemble the stored KV of a prompt and compute its missing and selected tokens. `prefix` is
    the KV of the plan's `prefix_tokens`, unless `into`, a cache with a slot for each token, has it.
    `policy`: not the request's. `observe`: of the last pass, whose rows are not split then."""
    assembly = together(model.ranks, lambda: assemble_plan(model, plan, prefix=prefix, into=into))
    # prefix_tokens            border                     stop              len(tokens)
    # |  missing: first pass   |  missing and selected:   |  the engine's   |
    # |  stored: exact         |  last pass               |                 |
    #                          |  the selection looks here, in between      |
    missing = torch.nonzero(assembly.source == TokenSource.MISSING).flatten()
    # First the tokens before any approximate one: they are exact then, and the question sees them.
    border = plan.stop if plan.approximate is None else plan.approximate
    if observe is not None or model.regime(border) != model.regime(len(plan.tokens)):
        border = 0  # all in one pass: with dynamic RoPE its last position decides the frequencies
    lead = missing[missing < border]
    logits = yield from recompute(model, assembly, lead, backend=backend, pace=pace)
    assembly.source[lead] = TokenSource.EXACT
    selected = yield from _select(model, plan, assembly, policy=policy, backend=backend, pace=pace)
    rows = assembly.rows_to_compute(selected)
    rows = rows[rows < (plan.request.chunks[-1][0] if plan.request.measure else plan.stop)]
    last = yield from recompute(model, assembly, rows, backend=backend, observe=observe, pace=pace)
    influence = None
    if plan.request.measure:
        influence = measure_last_chunk(model, assembly, backend=backend)
    num_exact = int((assembly.source == TokenSource.EXACT).sum()) - len(lead)
    num_reused = len(plan.tokens) - num_exact - len(missing) - len(selected)
    return FilledPrompt(
        assembly.cache,
        tuple(selected.tolist()),
        TokenOrigins(num_exact, num_reused, len(selected), len(missing)),
        logits=logits if last is None else last,
        influence=influence,
    )


def _select(
    model: ReusableModel,
    plan: PromptPlan,
    assembly: Assembly,
    *,
    policy: SelectionPolicy | None,
    backend: AttentionBackend | None,
    pace: Pace | None,
) -> Steps[torch.Tensor]:
    """Return the positions to recompute; to measure the last chunk, all of it."""
    request = plan.request
    if request.measure:
        start = request.chunks[-1][0]
        return assembly.candidates[assembly.candidates >= start]
    policy = policy or make_policy(request.policy)
    return (
        yield from policy.select(
            model,
            assembly,
            ratio=request.ratio,
            granularity=request.granularity,
            backend=backend,
            pace=pace,
        )
    )


def assemble_plan(
    model: ReusableModel,
    plan: PromptPlan,
    *,
    prefix: ChunkKV | None,
    into: RequestCache | None = None,
) -> Assembly:
    """Return a prompt with its stored KV, moved to its place; arguments as of `fill_steps`."""
    length, prefix_tokens = len(plan.tokens), plan.prefix_tokens
    # The store keeps KV in host memory; everything after this line is on the model's device.
    stored = [None if kv is None else kv.to(model.device) for kv in plan.stored]
    spans = []
    if prefix is not None and prefix_tokens:
        spans.append(ChunkSpan(0, TokenSource.EXACT, prefix.to(model.device)))
    for (start, _), kv, exact in zip(plan.request.chunks, stored, plan.exact, strict=True):
        if kv is not None:
            first = max(start, prefix_tokens)
            source = TokenSource.EXACT if exact else TokenSource.APPROXIMATE
            spans.append(ChunkSpan(first, source, kv.without_first(first - start)))
    source_of = torch.zeros(length, dtype=torch.int8)
    source_of[:prefix_tokens] = TokenSource.EXACT
    for span in spans:
        source_of[span.start : span.stop] = span.source
    return Assembly(
        plan.tokens,
        assemble(model, spans, length=length, into=into, num_held=0 if prefix else prefix_tokens),
        source_of.to(model.device),
        list(plan.request.chunks),
        plan.question,
        stored,
    )


def measure_last_chunk(
    model: ReusableModel, assembly: Assembly, *, backend: AttentionBackend | None
) -> Influence:
    """Compute the last chunk over the KV of all before it, in place of its own (Cache-Craft eq. 9,
    10; FusionRAG eq. 10)."""
    number = len(assembly.chunks) - 1
    start, stop = assembly.chunks[number]
    observer = InfluenceObserver(assembly.tokens, assembly.chunks, watched=[number])
    rows = torch.arange(start, stop, device=model.device)
    plan = ForwardPlan(rows, backend=backend, observe=observer)
    model.forward(assembly.tokens[start:stop], assembly.cache, plan=plan)
    return observer.influences()[number]


def keep_measured(
    model: ReusableModel, library: ChunkLibrary, plan: PromptPlan, filled: FilledPrompt
) -> None:
    """Store what was measured of the last chunk of a filled prompt, if that was asked for."""
    if filled.influence is None:
        return
    start, stop = plan.request.chunks[-1]
    key = library.key(plan.tokens[start:stop], tenant=plan.request.tenant)
    kv = extract(model, filled.cache, plan.tokens, start=start, stop=stop, is_exact=False)
    kv = replace(kv.to(torch.device("cpu")), influence=filled.influence)
    library.measure(key, filled.influence, behind=kv)


def largest_error(got: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    errors = [
        (tensor.float() - other.float()).abs().max() / other.float().abs().max()
        for tensor, other in zip(got, expected, strict=True)
    ]
    return float(torch.stack(errors).max())  # not a number if one is


def filled_error(
    model: ReusableModel, tokens: list[int], computed: ChunkKV, *, backend: AttentionBackend | None
) -> float:
    """Return the largest relative error of KV that went through a store, a plan and a filling
    against KV that the engine `computed`: what fails here would fail for every request."""
    # 0        start                stop      len(tokens)
    # | missing | stored, half of it | missing |
    # |         | recomputed         |         |
    start, stop = len(tokens) // 8, 3 * len(tokens) // 4
    library = ChunkLibrary(TieredStore(), identity=Identity(model="probe"), regime=computed.regime)
    layers = tuple((k[:, :, start:stop], v[:, :, start:stop]) for k, v in computed.layers)
    part = ChunkKV(tuple(tokens[start:stop]), start, layers, computed.regime, computed.length)
    library.add(library.key(part.tokens), part.to(torch.device("cpu")), is_first=True)
    got: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for policy in ("epic", "gradual"):  # one that looks at no token, and one that looks at all
        request = EngineChunkRequest(((start, stop),), policy=policy, ratio=0.5)
        keys = find_chunks(request, tokens, library)
        plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
        if isinstance(plan, str):
            raise UnsupportedModelError(f"{model.name} reuses nothing of a stored chunk: {plan}")
        filled = at_once(fill_steps(model, plan, prefix=None, backend=backend))
        for layer, kv in zip(filled.cache.layers, computed.layers, strict=True):
            got += [part[:, :, : plan.stop] for part in (layer.keys, layer.values)]
            expected += [part[:, :, : plan.stop] for part in kv]
    return largest_error(got, expected)


def recompute(
    model: ReusableModel,
    assembly: Assembly,
    rows: torch.Tensor,
    *,
    backend: AttentionBackend | None = None,
    observe: Observer | None = None,
    pace: Pace | None = None,
) -> Steps[torch.Tensor | None]:
    """Compute rows layer by layer, each over all earlier keys, a piece per step, as a
    token-by-token loop would; return the last row's logits, unless an observer stopped the pass."""
    logits = None
    for piece in (pace or Pace()).pieces(rows):
        tokens = [assembly.tokens[position] for position in piece.tolist()]
        plan = ForwardPlan(piece, backend=backend, observe=observe)
        logits = model.forward(tokens, assembly.cache, plan=plan)
        yield len(piece)
    return logits
