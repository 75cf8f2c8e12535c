"""Location hints: where a document of an earlier turn stands (RAGBoost section 6)."""

from collections.abc import Iterable

from ragboost.types import Hint


def location_hints(labels: Iterable[str], *, template: str) -> tuple[Hint, ...]:
    """One hint for each document that an earlier turn of this payload carries.

    Args:
        labels: the documents' labels there, most relevant first.
        template: contains `{document}`, which becomes the label.
    """
    return tuple(
        Hint("location", template.replace("{document}", label), (label,)) for label in labels
    )
