"""Compute the tokens again that need what their branch does not see: accuracy without tuning.

Our extension, not the paper's. Dependency attention leaves a token ignorant of other branches,
which a model that was never tuned for it has not learnt to bear. The policies of chunk reuse choose
the tokens, and these are computed as ordinary attention would: over everything before them.
"""

import torch

from ragboost.chunk_cache.assemble import Assembly, TokenSource
from ragboost.chunk_cache.dependency.layout import Layout
from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.recompute import recompute
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.base import budget, choose
from ragboost.chunk_cache.selection.view import SelectionView


def repair(
    adapter: ModelAdapter, layout: Layout, cache: RequestCache, *, ratio: float, policy: str
) -> tuple[torch.Tensor, int]:
    """Compute a share of the trees' tokens again, and the task.

    Args:
        adapter: the model.
        layout: of the prompt.
        cache: its KV, complete but for the task; written to.
        ratio: share of the tokens of trees, 0 to 1.
        policy: which ones; a name of `selection.POLICIES`.

    Returns:
        The logits of the last token, (vocabulary,), and how many tokens were computed again.
    """
    cache.positions = layout.positions
    assembly = _assembly(layout, cache)
    candidates = assembly.candidates
    chooser = make_policy(policy)
    num_tokens = budget(chooser.ratio(ratio), len(candidates))
    backend = make_backend("tiled")
    selected = candidates[:num_tokens]
    if 0 < num_tokens < len(candidates):
        view = SelectionView(adapter, assembly, budget=num_tokens, backend=backend)
        selected = choose(assembly, chooser.score(view), num_tokens=num_tokens)
    return recompute(adapter, assembly, selected=selected, backend=backend), len(selected)


def _assembly(layout: Layout, cache: RequestCache) -> Assembly:
    """Return the prompt as the policies know it: branches from the trees' roots are its chunks."""
    source = torch.full((len(layout),), int(TokenSource.EXACT), dtype=torch.int8)
    source[layout.task :] = TokenSource.MISSING
    chunks = []
    for run in layout.runs[:-1]:
        seen = sum(stop - start for start, stop in run.sees)
        if seen < run.start:  # something before it is out of its sight
            source[run.start : run.stop] = TokenSource.APPROXIMATE
            chunks.append((run.start, run.stop))
    device = layout.positions.device
    sensitivity = torch.zeros(len(layout), device=device)
    return Assembly(layout.tokens, cache, source.to(device), chunks, layout.task, sensitivity)
