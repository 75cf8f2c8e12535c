"""Location hints: where an earlier turn contains a document (RAGBoost section 6)."""

from collections.abc import Iterable

from ragboost.types import Hint


def location_hints(labels: Iterable[str], *, template: str) -> tuple[Hint, ...]:
    """Render a hint for each document that an earlier turn contains.

    `labels` are those of that turn, most relevant first; `{document}` in the template becomes one.
    """
    return tuple(
        Hint("location", template.replace("{document}", label), (label,)) for label in labels
    )
