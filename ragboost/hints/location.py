"""Location hints: where an earlier turn contains a document (RAGBoost section 6)."""

from collections.abc import Collection

from ragboost.types import Hint

_MAX_NAMED = 3  # documents that are named one by one if they are all that there are


def location_hints(
    labels: Collection[str], *, template: str, num_carried: int = 0
) -> tuple[Hint, ...]:
    """Render a hint for each document that an earlier turn contains, or one for all of them.

    A client that gives the documents of all turns again would else have a longer hint with every
    turn.

    Args:
        labels: those of that turn, most relevant first.
        template: `{document}` becomes one.
        num_carried: documents that the earlier turns contain; 0: each is to be named.
    """
    if len(labels) == num_carried > _MAX_NAMED:
        text = template.replace("{document}", "all documents")
        return (Hint("location", text, tuple(labels)),)
    return tuple(
        [Hint("location", template.replace("{document}", label), (label,)) for label in labels]
    )
