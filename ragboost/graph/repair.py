"""Recompute the tokens that need what their branch does not see: accuracy without tuning.

Our extension, not the paper's. With dependency attention a token does not see other branches, which
lowers the accuracy of models that were not tuned for it. The selection policies of chunk reuse
choose tokens, which are recomputed with ordinary attention over everything before them.
"""

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import AT_ONCE, Pace
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.policy import budget, choose
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.graph.layout import Layout


def repair(
    adapter: ModelAdapter,
    layout: Layout,
    cache: RequestCache,
    *,
    ratio: float,
    policy: str,
    pace: Pace = AT_ONCE,
) -> tuple[torch.Tensor, int]:
    """Recompute a share of the trees' tokens, and compute the task.

    Args:
        adapter: the model.
        layout: layout of the prompt.
        cache: KV of the prompt, complete but for the task; written to.
        ratio: share of the trees' tokens, 0 to 1.
        policy: a name in `selection.POLICIES`.
        pace: splits the computation into pieces.

    Returns:
        The logits of the last token, (vocabulary,), and the number of recomputed tokens.
    """
    cache.positions = layout.positions
    assembly = _assembly(layout, cache)
    candidates = assembly.candidates
    chooser = make_policy(policy)
    num_tokens = budget(chooser.ratio(ratio), len(candidates))
    backend = make_backend("tiled")
    selected = candidates[:num_tokens]
    if 0 < num_tokens < len(candidates):
        view = SelectionView(adapter, assembly, budget=num_tokens, backend=backend, pace=pace)
        selected = choose(assembly, chooser.score(view), num_tokens=num_tokens)
    logits = recompute(adapter, assembly, selected=selected, backend=backend, pace=pace)
    return logits, len(selected)


def _assembly(layout: Layout, cache: RequestCache) -> Assembly:
    """Return the prompt with the branches that do not see everything before them as its chunks."""
    source = torch.full((len(layout),), int(TokenSource.EXACT), dtype=torch.int8)
    source[layout.task :] = TokenSource.MISSING
    chunks = []
    for run in layout.runs[:-1]:
        seen = sum(stop - start for start, stop in run.sees)
        if seen < run.start:
            source[run.start : run.stop] = TokenSource.APPROXIMATE
            chunks.append((run.start, run.stop))
    device = layout.positions.device
    sensitivity = torch.zeros(len(layout), device=device)
    return Assembly(layout.tokens, cache, source.to(device), chunks, layout.task, sensitivity)
