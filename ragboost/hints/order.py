"""The order hint: the relevance order of documents that were reordered (RAGBoost section 5.3)."""

from collections.abc import Sequence

from ragboost.types import Hint

MAX_LABELS = 50
_REST = "then the rest in the order shown"


def order_hint(labels: Sequence[str], *, template: str) -> Hint:
    """Tell the relevance order.

    A hint names at most `MAX_LABELS` documents: of a longer list the most relevant, "then the rest
    in the order shown".

    Args:
        labels: the documents' labels, most relevant first.
        template: contains `{order}`, which becomes `[Doc_2] >> [Doc_1] >> [Doc_4]`.
    """
    named = tuple(labels[:MAX_LABELS])
    steps = named if len(labels) <= MAX_LABELS else (*named, _REST)
    return Hint("order", template.replace("{order}", " >> ".join(steps)), named)
