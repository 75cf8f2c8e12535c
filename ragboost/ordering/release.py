"""The order in which waiting requests are released (RAGBoost section 5.2).

Works on search paths alone; knows neither documents nor time.
"""

from collections.abc import Sequence


def release_order(search_paths: Sequence[Sequence[int]]) -> list[int]:
    """Group requests by the first step of their search path, longer paths first in a group.

    Groups come in the order of their first request, so that nobody is overtaken without cause;
    paths of equal length are sorted, so that those with a longer common part stand together, and
    equal paths keep the given order. A request with an empty path shares nothing and is a group of
    its own. O(N log N).

    Args:
        search_paths: one per request: child positions from the root of the context index.

    Returns:
        Positions into `search_paths`, in release order.
    """
    group_of: dict[int, int] = {}
    keys = []
    for i, path in enumerate(search_paths):
        group = group_of.setdefault(path[0], i) if path else i
        keys.append((group, -len(path), tuple(path[1:]), i))
    return [key[-1] for key in sorted(keys)]
