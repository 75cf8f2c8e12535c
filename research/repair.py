"""Recompute the tokens that need what their branch does not see: accuracy without tuning. Our
extension, not the paper's: policies of chunk reuse choose tokens, which are recomputed with
ordinary attention over everything before them."""

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.selection import DEFAULT_POLICY, make_policy
from ragboost.graph.depcache import DepKV
from ragboost.graph.layout import Layout


def repair(
    adapter: ModelAdapter, kv: DepKV, *, ratio: float, policy: str = DEFAULT_POLICY
) -> torch.Tensor:
    """Recompute a share of the trees' tokens, and the task over them, in the prompt's cache; return
    the last logits, (vocabulary,)."""
    layout, cache = kv.layout, kv.cache
    cache.positions = layout.positions
    assembly = _assembly(layout, cache)
    backend = make_backend("tiled")
    steps = make_policy(policy).select(adapter, assembly, ratio=ratio, backend=backend)
    rows = assembly.rows_to_compute(at_once(steps))
    logits = at_once(recompute(adapter, assembly, rows, backend=backend))
    assert logits is not None, "the task is computed"
    return logits


def _assembly(layout: Layout, cache: RequestCache) -> Assembly:
    """Return the prompt with the branches that do not see everything before them as its chunks."""
    # slot     0   1     3   4     6     8         9    of the drawing in `layout`
    # run      | 0 | 1   | 2 | 3   | 4   | 5       |
    # source   | exact       | approx.   | missing |
    source = torch.full((len(layout),), int(TokenSource.EXACT), dtype=torch.int8)
    source[layout.task :] = TokenSource.MISSING
    chunks = []
    for run in layout.runs[:-1]:
        if sum(stop - start for start, stop in run.sees) < run.start:
            source[run.start : run.stop] = TokenSource.APPROXIMATE
            chunks.append((run.start, run.stop))
    device = layout.positions.device
    sensitivity = torch.zeros(len(layout), device=device)
    return Assembly(layout.tokens, cache, source.to(device), chunks, layout.task, sensitivity)
