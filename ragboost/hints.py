"""Hints that tell the model about reordering and de-duplication (RAGBoost sections 5.3 and 6).

Also the labels by which prompt and hints name documents. A label depends on the document and on
those before it, never on a position, so equal leading documents have equal labels.
"""

from collections.abc import Iterable, Mapping, Sequence

from ragboost.types import Document, Hint

MAX_LABELS = 50
"""Documents that one order hint names."""
_REST = "then the rest in the order shown"
_KEY_DIGITS = (4, 8, 16, 32)


def order_hint(labels: Sequence[str], by_relevance: Sequence[int], *, template: str) -> Hint | None:
    """Render the relevance order of documents that were reordered (paper section 5.3).

    Of more than `MAX_LABELS` documents it names the most relevant, and adds "then the rest in the
    order shown" if the prompt has the others in relevance order. None if the prompt is in
    relevance order already.

    Args:
        labels: the documents' labels in prompt order. Copies of a document share one, which is
            named once, at the rank of the most relevant copy.
        by_relevance: positions in `labels`, most relevant first.
        template: contains `{order}`, which becomes `[Doc_2] >> [Doc_1] >> [Doc_4]`.
    """
    places: dict[str, int] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, place)
    by_rank = list(dict.fromkeys([labels[place] for place in by_relevance]))
    order = [places[label] for label in by_rank]
    if order == sorted(order):
        return None
    named, rest = tuple(by_rank[:MAX_LABELS]), order[MAX_LABELS:]
    steps = (*named, _REST) if rest and rest == sorted(rest) else named
    return Hint("order", template.replace("{order}", " >> ".join(steps)), named)


def location_hints(labels: Iterable[str], *, template: str) -> tuple[Hint, ...]:
    """Render a hint for each document that an earlier turn contains (paper section 6).

    Args:
        labels: the documents' labels in that turn, most relevant first.
        template: contains `{document}`, which becomes the label.
    """
    return tuple(
        Hint("location", template.replace("{document}", label), (label,)) for label in labels
    )


def label_documents(
    documents: Sequence[Document],
    *,
    template: str,
    known: Mapping[str, str],
    is_complete: bool = True,
) -> tuple[str, ...]:
    """Label documents in prompt order.

    If two documents would have the same label, for example one id with two texts, the later one
    gets as many digits of its key as needed to distinguish them: `[Doc_7]`, `[Doc_7~c0ff]`.

    Args:
        documents: in prompt order.
        template: contains `{label}`.
        known: labels that the session has given, by document key; they are kept and never given to
            another document.
        is_complete: `known` has all labels of the payload. If some may have been forgotten, each
            new label gets digits of its key.
    """
    owners = {label: key for key, label in known.items()}
    labels = []
    for document in documents:
        key = document.key
        label = known.get(key) if known else None
        if label is None:
            label = template.replace("{label}", document.label)
            if not is_complete or owners.get(label, key) != key:
                label = _free_label(document, template, owners, is_complete=is_complete)
        owners[label] = key
        labels.append(label)
    return tuple(labels)


def _free_label(
    document: Document, template: str, owners: Mapping[str, str], *, is_complete: bool
) -> str:
    name, key = document.label, document.key
    label = ""
    for digits in _KEY_DIGITS if is_complete else _KEY_DIGITS[1:]:
        label = template.replace("{label}", f"{name}~{key[:digits]}")
        if owners.get(label, key) == key:
            break
    return label
