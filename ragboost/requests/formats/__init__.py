"""Find documents in a request body and write the new order back; one file per wire shape."""

from ragboost.config import Settings
from ragboost.requests.formats.detection import Detection
from ragboost.requests.formats.documents import (
    AmbiguousDocumentsError,
    DocumentPool,
    Format,
    FoundDocuments,
    LeftAloneError,
    NothingToDoError,
    NumberedDocumentsError,
    OrderedDocumentsError,
    TooManyDocumentsError,
    UnknownShapeError,
    UnmarkedDocumentsError,
    find_format,
)
from ragboost.requests.formats.documents_field import DocumentsField
from ragboost.requests.formats.evidence.evidence import Evidence
from ragboost.requests.formats.messages import Messages
from ragboost.requests.formats.ragboost_object import RagboostObject
from ragboost.requests.formats.unmarked import UnmarkedDocuments

__all__ = [
    "AmbiguousDocumentsError",
    "Detection",
    "Format",
    "FoundDocuments",
    "LeftAloneError",
    "NothingToDoError",
    "NumberedDocumentsError",
    "OrderedDocumentsError",
    "TooManyDocumentsError",
    "UnknownShapeError",
    "UnmarkedDocumentsError",
    "find_format",
    "make_formats",
]


def make_formats(
    settings: Settings, *, learns: bool = False, maps_answers: bool = True
) -> tuple[Format, ...]:
    """Return the known shapes in the order in which they are tried; the first match wins.

    Documents that the caller names explicitly come before documents found in texts.

    Args:
        learns: from traffic, where documents end that their text does not delimit.
        maps_answers: the caller maps the citations of numbered documents in the answers; else
            documents whose numbers may be cited stay in the client's order.
    """
    hints, limit = settings.hints, settings.formats.max_documents
    memory = settings.proxy.memory
    pool = DocumentPool(max_bytes=memory.texts)
    evidence = Evidence(max_bytes=memory.evidence) if learns and settings.formats.evidence else None
    return (
        RagboostObject(max_documents=limit, pool=pool),
        DocumentsField(hints, max_documents=limit),
        DocumentsField(hints, max_documents=limit, parent="chat_template_kwargs"),
        Messages(
            settings,
            pool=pool,
            unmarked=UnmarkedDocuments(settings, evidence=evidence),
            maps_answers=maps_answers,
        ),
    )
