"""Documents retrieved by the tests of all frameworks."""

_BODY = {
    name: f"Sentence about {name}. " * 30 for name in ("lease", "rent", "pets", "parking", "garden")
}
TEXTS = {name: f"{name.capitalize()} is described here. {body}" for name, body in _BODY.items()}
FIRST = ("lease", "rent", "pets")
SECOND = ("pets", "parking", "lease")
"""Shares two documents with FIRST, but no prefix in retrieval order."""


def words(texts: object) -> list[str]:
    """Return the names of the documents in a text, in order."""
    text = str(texts)
    places = {name: text.find(body.strip()) for name, body in _BODY.items()}
    return sorted((name for name, at in places.items() if at >= 0), key=places.__getitem__)


def num_copies(text: str) -> dict[str, int]:
    """Count the full copies of each document in a text."""
    counts = {name: text.count(body.strip()) for name, body in _BODY.items()}
    return {name: count for name, count in counts.items() if count}
