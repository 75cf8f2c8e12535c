"""Cache-Craft's formulas: how far a chunk's old context is back (eq. 6-8), how much the chunk
depended on it (eq. 9-11), and how many tokens that makes worth computing again (eq. 12-14).

Knows numbers and names of chunks. Does not know KV, models or where attention was measured.
"""

import math
from collections.abc import Mapping, Sequence

from ragboost.errors import ChunkCacheError


def prefix_overlap(inter: Mapping[str, float], prefix: Sequence[str]) -> float:
    """Return beta (eq. 6): the share of a chunk's inter-attention that went to chunks which stand
    before it again.

    A chunk that was stored without a context has 0. Where it looked at nothing in its context, beta
    is 1 if the whole context is back, else 0.

    Args:
        inter: attention to each chunk of the old context, by the chunk's name.
        prefix: names of the chunks that stand before it now.
    """
    if not inter:
        return 0.0
    now = set(prefix)
    total = sum(inter.values())
    if total <= 0.0:
        return 1.0 if inter.keys() <= now else 0.0
    return sum(value for name, value in inter.items() if name in now) / total


def order_penalty(old: Sequence[str], new: Sequence[str]) -> float:
    """Return gamma (eq. 7): the share of pairs of common chunks whose order changed (the normalised
    Kendall distance, 0 to 1); 0 for fewer than two common chunks. A repeated chunk counts where it
    stands first."""
    first = {name: place for place, name in reversed(list(enumerate(new)))}
    places = [first[name] for name in dict.fromkeys(old) if name in first]
    num_pairs = len(places) * (len(places) - 1) // 2
    if num_pairs == 0:
        return 0.0
    discordant = sum(
        places[i] > places[j] for i in range(len(places)) for j in range(i + 1, len(places))
    )
    return discordant / num_pairs


def adjusted_overlap(beta: float, gamma: float) -> float:
    """Return beta' (eq. 8)."""
    return beta * (1.0 - gamma)


def context_impact(a: float, b: float, *, literal: bool = False) -> float:
    """Return the Cache Context Impact, CCI, of mean normalised inter- (a) and intra-attention (b).

    The default is a / (a + b), which is the sigmoid of ln(a / b); 0 where both are 0. The paper
    prints the sigmoid of a / b (eq. 11), which is at least 0.5 however little a chunk depends on
    its context; `literal` gives that.

    Args:
        a, b: not negative.
        literal: the printed form.
    """
    if a < 0.0 or b < 0.0:
        raise ChunkCacheError(f"attention cannot be negative, got a={a}, b={b}")
    if not literal:
        return a / (a + b) if a > 0.0 else 0.0
    if b == 0.0:
        return 1.0 if a > 0.0 else 0.5
    return 1.0 / (1.0 + math.exp(-a / b))


def fix_overhead(impact: float, overlap: float, *, alpha: float = 1.0) -> float:
    """Return the Cache Fix Overhead, CFO (eq. 12), clipped to [0, 1]: the share of a chunk's tokens
    to compute again.

    Args:
        impact: CCI.
        overlap: beta'.
        alpha: scale, not negative.
    """
    if alpha < 0.0:
        raise ChunkCacheError(f"alpha must not be negative, got {alpha}")
    return min(1.0, max(0.0, alpha * impact * (1.0 - overlap)))


def num_to_fix(overhead: float, num_tokens: int) -> int:
    """Return how many tokens of a chunk to compute again (before eq. 14)."""
    # 0.1 * 3 * 10 is a little more than 3 in binary.
    return min(num_tokens, math.ceil(overhead * num_tokens - 1e-9))
