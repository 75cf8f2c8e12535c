"""Plan a file: the document order of each request, the order of requests, and the hit rate."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.batch.requests import BatchRequests
from ragboost.batch.simulate import HitRate, simulate
from ragboost.config import OrderingSettings
from ragboost.ordering import plan_batch


class FilePlan(NamedTuple):
    # For each request of the file, the documents to send in prompt order.
    permutations: list[Sequence[int]]
    release: list[int]  # positions of the requests in release order


def plan_file(requests: BatchRequests, settings: OrderingSettings) -> FilePlan:
    """Plan each group of requests with the same head; requests without a plan come last."""
    permutations: list[Sequence[int]] = [range(len(each)) for each in requests.documents]
    release: list[int] = []
    tokens = dict[Hashable, int](enumerate(requests.tokens))
    *groups, fixed = requests.groups()
    for group in groups:
        contexts = [requests.sent(i) for i in group]
        for i, context in zip(group, contexts, strict=True):
            permutations[i] = range(len(context))
        if not settings.enabled or len(group) == 1:
            release.extend(group)
            continue
        plan = plan_batch(contexts, tokens, keep_last=settings.num_kept())
        for i, permutation in zip(group, plan.permutations, strict=True):
            permutations[i] = permutation
        release.extend(group[i] for i in plan.release_order)
    return FilePlan(permutations, [*release, *fixed])


def predict(requests: BatchRequests, plan: FilePlan | None, *, cache_tokens: int | None) -> HitRate:
    """Predict the hit rate of a prefix cache for the file's documents, unchanged or planned.

    A request's head precedes its documents with a length of 0: it separates requests that cannot
    share a prefix, and is not counted.
    """

    def sequence(position: int) -> list[Hashable]:
        head = requests.heads[position]
        if plan is None or head < 0:
            return [f"head {head}", *requests.documents[position]]
        documents = requests.sent(position)
        return [f"head {head}", *(documents[i] for i in plan.permutations[position])]

    return simulate(
        map(sequence, plan.release if plan else range(len(requests.documents))),
        lambda item: 0 if isinstance(item, str) else requests.tokens[item],
        capacity_tokens=cache_tokens,
    )
