"""Labels of documents, and hints that tell the model about reordering and de-duplication (RAGBoost
sections 5.3 and 6).

A label depends on the document and on those before it, never on a position, so equal leading
documents have equal labels.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from ragboost.types import Document, Hint

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


_MAX_NAMED = 3  # documents that are named one by one if they are all that there are


def location_hints(
    labels: Collection[str], *, template: str, num_carried: int = 0
) -> tuple[Hint, ...]:
    """Render a hint for each document that an earlier turn contains, or one for all of them.

    A client that gives the documents of all turns again would else have a longer hint with every
    turn. The earlier turns contain `num_carried` documents; 0: each is to be named.
    """
    if len(labels) == num_carried > _MAX_NAMED:
        text = template.replace("{document}", "all documents")
        return (Hint("location", text, tuple(labels)),)
    return tuple(
        [Hint("location", template.replace("{document}", label), (label,)) for label in labels]
    )


MAX_LABELS = 50  # documents that one hint names
_REST = "then the rest in the order shown"


def order_hint(labels: Sequence[str], by_relevance: Sequence[int], *, template: str) -> Hint | None:
    """Render the relevance order; None if the prompt is in relevance order already.

    Of more than `MAX_LABELS` documents it names the most relevant, and adds "then the rest in the
    order shown" if the prompt has the others in relevance order.
    `labels` are in prompt order; copies of a document share one, which is named once, at the rank
    of the most relevant copy. `{order}` becomes `[Doc_2] >> [Doc_1] >> [Doc_4]`.
    """
    places = dict(zip(reversed(labels), range(len(labels) - 1, -1, -1), strict=True))
    by_rank = list(dict.fromkeys(map(labels.__getitem__, by_relevance)))
    order = list(map(places.__getitem__, by_rank))
    if order == sorted(order):
        return None
    named, rest = tuple(by_rank[:MAX_LABELS]), order[MAX_LABELS:]
    steps = (*named, _REST) if rest and rest == sorted(rest) else named
    return Hint("order", template.replace("{order}", " >> ".join(steps)), named)
