"""Labels: the names under which prompt and hints speak of documents.

A label depends on the document and on those that stand before it, never on a position, so that
equal leading documents have equal labels.
"""

from collections.abc import Mapping, Sequence

from ragboost.types import Document

_KEY_DIGITS = (4, 8, 16, 32)


def label_documents(
    documents: Sequence[Document],
    *,
    template: str,
    known: Mapping[str, str],
    is_complete: bool = True,
) -> tuple[str, ...]:
    """Label documents in prompt order.

    Where two documents would have the same label, for example the same id with two texts, the later
    one gets as many digits of its key as it takes to tell them apart: `[Doc_7]`, `[Doc_7~c0ff]`.

    Args:
        documents: in prompt order.
        template: contains `{label}`.
        known: labels by document key that the session has given; they stay, and nobody else gets
            them.
        is_complete: no other labels stand in the payload. Where some may, but have been forgotten,
            each new label gets digits of its key.
    """
    owners = {label: key for key, label in known.items()}
    labels = []
    for document in documents:
        key = document.key
        label = known.get(key) if known else None
        if label is None:
            label = template.replace("{label}", document.label)
            if not is_complete or owners.get(label, key) != key:
                label = _free_label(document, template, owners, plain=is_complete)
        owners[label] = key
        labels.append(label)
    return tuple(labels)


def _free_label(
    document: Document, template: str, owners: Mapping[str, str], *, plain: bool
) -> str:
    """A label with digits of the document's key, where the plain one is not free."""
    name, key = document.label, document.key
    label = ""
    for digits in _KEY_DIGITS if plain else _KEY_DIGITS[1:]:
        label = template.replace("{label}", f"{name}~{key[:digits]}")
        if owners.get(label, key) == key:
            break
    return label
