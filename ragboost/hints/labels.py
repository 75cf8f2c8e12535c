"""Labels by which prompt and hints name documents.

A label depends on the document and on those before it, never on a position, so equal leading
documents have equal labels.
"""

from collections.abc import Callable, Mapping, Sequence

from ragboost.types import Document

_KEY_DIGITS = (4, 8, 16, 32)


def label_documents(
    documents: Sequence[Document],
    *,
    template: str,
    known: Mapping[str, str],
    owners: Mapping[str, str] | None = None,
    is_complete: bool = True,
) -> tuple[str, ...]:
    """Label documents in prompt order.

    If two documents would have the same label, for example one id with two texts, the later one
    gets as many digits of its key as needed to distinguish them: `[Doc_7]`, `[Doc_7~c0ff]`.

    Args:
        template: contains `{label}`.
        known: labels that the session has given, by document key; they are kept and never given to
            another document.
        owners: `known` the other way round, if the caller has it.
        is_complete: `known` has all labels of the payload. If some may have been forgotten, each
            new label gets digits of its key.
    """
    taken = {label: key for key, label in known.items()} if owners is None else owners
    if not taken and is_complete:
        labels = [template.replace("{label}", document.label) for document in documents]
        if len(set(labels)) == len(labels):
            return tuple(labels)
    added: dict[str, str] = {}  # keys by label

    def is_free(label: str, key: str) -> bool:
        return added.get(label, key) == key == taken.get(label, key)

    labels = []
    for document in documents:
        key = document.key
        label = known.get(key) if known else None
        if label is None:
            label = template.replace("{label}", document.label)
            is_new = label not in added and label not in taken
            if not is_complete or not (is_new or is_free(label, key)):
                label = _free_label(document, template, is_free, is_complete=is_complete)
        added[label] = key
        labels.append(label)
    return tuple(labels)


def _free_label(
    document: Document, template: str, is_free: Callable[[str, str], bool], *, is_complete: bool
) -> str:
    name, key = document.label, document.key
    label = ""
    for digits in _KEY_DIGITS if is_complete else _KEY_DIGITS[1:]:
        label = template.replace("{label}", f"{name}~{key[:digits]}")
        if is_free(label, key):
            break
    return label
