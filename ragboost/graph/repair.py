"""Recompute the tokens that need what their branch does not see: accuracy without tuning. Our
extension, not the paper's: policies of chunk reuse choose tokens, which are recomputed with
ordinary attention over everything before them."""

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.selection import make_policy
from ragboost.graph.layout import Layout


def repair(
    adapter: ModelAdapter,
    layout: Layout,
    cache: RequestCache,
    *,
    ratio: float,
    policy: str,
    pace: Pace,
) -> Steps[tuple[torch.Tensor, int]]:
    """Recompute a share of the trees' tokens, and compute the task, in steps, into `cache`; return
    the last logits, (vocabulary,), and the number of recomputed tokens."""
    cache.positions = layout.positions
    assembly = _assembly(layout, cache)
    backend = make_backend("tiled")
    selected = yield from make_policy(policy).select(
        adapter, assembly, ratio=ratio, backend=backend, pace=pace
    )
    rows = assembly.rows_to_compute(selected)
    logits = yield from recompute(adapter, assembly, rows, backend=backend, pace=pace)
    assert logits is not None, "the task is computed"
    return logits, len(selected)


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
