"""Plan a file: the document order of each request, the order of requests, and the hit rate."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.batch.catalog import DocumentCatalog
from ragboost.config import OrderingSettings
from ragboost.ordering import plan_batch
from ragboost.simulate import HitRate, simulate


class FilePlan(NamedTuple):
    # For each request of the file, the documents to send in prompt order.
    permutations: list[Sequence[int]]
    release: list[int]  # positions of the requests in release order


def plan_file(catalog: DocumentCatalog, settings: OrderingSettings) -> FilePlan:
    """Plan each group of requests with the same head; requests without a plan come last."""
    permutations: list[Sequence[int]] = [range(len(entry.documents)) for entry in catalog.entries]
    release: list[int] = []
    tokens = dict[Hashable, int](enumerate(catalog.tokens))
    *groups, fixed = catalog.groups()
    for group in groups:
        contexts = [catalog.sent(catalog.entries[i]) for i in group]
        for i, context in zip(group, contexts, strict=True):
            permutations[i] = range(len(context))
        if not settings.enabled or len(group) == 1:
            release.extend(group)
            continue
        plan = plan_batch(contexts, tokens, keep_last=settings.keep_last)
        for i, permutation in zip(group, plan.permutations, strict=True):
            permutations[i] = permutation
        release.extend(group[i] for i in plan.release_order)
    return FilePlan(permutations, [*release, *fixed])


def predict(
    catalog: DocumentCatalog,
    plan: FilePlan | None,
    *,
    cache_tokens: int | None,
    block_size: int | None,
) -> HitRate:
    """Predict the hit rate of a prefix cache for the file's documents, unchanged or planned.

    A request's head precedes its documents with a length of 0: it separates requests that cannot
    share a prefix, and is not counted.
    """

    def sequence(position: int) -> list[Hashable]:
        entry = catalog.entries[position]
        if plan is None or entry.head < 0:
            return [f"head {entry.head}", *entry.documents]
        documents = catalog.sent(entry)
        return [f"head {entry.head}", *(documents[i] for i in plan.permutations[position])]

    return simulate(
        map(sequence, plan.release if plan else range(len(catalog.entries))),
        lambda item: 0 if isinstance(item, str) else catalog.tokens[item],
        capacity_tokens=cache_tokens,
        block_size=block_size,
    )
