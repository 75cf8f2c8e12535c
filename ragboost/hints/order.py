"""The order hint: the relevance order of documents that were reordered (RAGBoost section 5.3)."""

from collections.abc import Sequence

from ragboost.types import Hint

MAX_LABELS = 50  # documents that one hint names
_REST = "then the rest in the order shown"


def order_hint(labels: Sequence[str], by_relevance: Sequence[int], *, template: str) -> Hint | None:
    """Render the relevance order; None if the prompt is in relevance order already.

    Of more than `MAX_LABELS` documents it names the most relevant, and adds "then the rest in the
    order shown" if the prompt has the others in relevance order.

    Args:
        labels: the documents' labels in prompt order. Copies of a document share one, which is
            named once, at the rank of the most relevant copy.
        by_relevance: positions in `labels`, most relevant first.
        template: contains `{order}`, which becomes `[Doc_2] >> [Doc_1] >> [Doc_4]`.
    """
    places = dict(zip(reversed(labels), range(len(labels) - 1, -1, -1), strict=True))
    by_rank = list(dict.fromkeys(map(labels.__getitem__, by_relevance)))
    order = list(map(places.__getitem__, by_rank))
    if order == sorted(order):
        return None
    named, rest = tuple(by_rank[:MAX_LABELS]), order[MAX_LABELS:]
    steps = (*named, _REST) if rest and rest == sorted(rest) else named
    return Hint("order", template.replace("{order}", " >> ".join(steps)), named)
