"""The tokens of a chunk to recompute, by its influence and the context (Cache-Craft eq. 12, 14)."""

import math

from ragboost.errors import ChunkCacheError


def fix_overhead(impact: float, overlap: float, *, alpha: float = 1.0) -> float:
    """Return the Cache Fix Overhead (CFO, eq. 12): the share of a chunk's tokens to recompute.

    Args:
        alpha: scale, at least 0.
    """
    if alpha < 0.0:
        raise ChunkCacheError(f"alpha must not be negative, got {alpha}")
    return min(1.0, max(0.0, alpha * impact * (1.0 - overlap)))


def num_to_fix(overhead: float, num_tokens: int) -> int:
    """Return the number of a chunk's tokens to recompute (the size of eq. 14's selection)."""
    # 0.1 * 3 * 10 is slightly above 3 in binary.
    return min(num_tokens, math.ceil(overhead * num_tokens - 1e-9))
