"""Name what was seen of a request's documents, in words that headers, logs and reports share.

Does not know what became of the request: that stands in `x-ragboost-bypass`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.errors import RagBoostError
from ragboost.requests.formats.documents import Format, FoundDocuments, LeftAloneError
from ragboost.requests.formats.groups import EVIDENCE

FOUND = "found"
# Frames with names of their own; those with a tag are `tags`, all others are `lines`.
_FRAMES = ("json", "repr", "name and fence", "content blocks", EVIDENCE)
_MAX_SHAPES = 100

# The smallest change that helps, by detection.
ADVICE: Mapping[str, str] = {
    "no_documents": "put each document into a tag, <document>...</document>, or send them in "
    "`ragboost.documents`",
    "unmarked_documents": "put each document into a tag, <document>...</document>; a running proxy "
    "with formats.evidence also finds them once they have come back",
    "ambiguous_documents": "use a mark that no document contains, a tag for each document, or send "
    "them in `ragboost.documents`",
    "ordered_documents": "nothing, if their order matters; else leave out the field or the words "
    "that say so, or send them in `ragboost.documents`",
    "numbered_documents": "leave out the numbers, or send the requests through the proxy, "
    "which maps those in answers",
    "nothing_to_do": "nothing to change: only documents before the first answer are ordered, and "
    "none of the later ones was there before",
    "too_many_documents": "raise formats.max_documents, or retrieve fewer",
    "unknown_shape": "send the documents in `ragboost.documents`",
    "malformed_body": "send one JSON object in UTF-8",
    "refused": "correct the field that is named",
}


class Detection(NamedTuple):
    name: str  # `found`, or the reason for which there is nothing to boost
    frame: str = ""  # the kind of frame: one of a few, none of the client's words
    num_documents: int = 0

    @classmethod
    def found(cls, shape: Format, found: FoundDocuments) -> "Detection":
        frame = frame_kind(found.frame) if found.frame else shape.name.replace("_", " ")
        return cls(FOUND, frame, len(found.documents) + found.num_later)

    @classmethod
    def left(cls, reason: str, error: RagBoostError | None) -> "Detection":
        """Return the detection of a request that is left alone."""
        if isinstance(error, LeftAloneError):
            return cls(reason, frame_kind(error.frame), error.num_documents)
        return cls(reason)


def frame_kind(frame: str) -> str:
    if not frame or frame in _FRAMES:
        return frame
    return "tags" if frame.startswith("<") else "lines"


class DetectionCounts:
    """The requests and documents of a log, by detection and kind of frame.

    Bounded: only a forged log has more than `_MAX_SHAPES`; the rest counts as `other`.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, detection: Detection) -> None:
        if not detection.name:  # a log of an earlier version
            return
        shape = detection.name, detection.frame
        if shape not in self._counts and len(self._counts) >= _MAX_SHAPES:
            shape = "other", ""
        requests, documents = self._counts.get(shape, (0, 0))
        self._counts[shape] = requests + 1, documents + detection.num_documents

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"detection": name, "frame": frame, "requests": requests, "documents": documents}
            for (name, frame), (requests, documents) in self._sorted()
        ]

    def lines(self) -> list[str]:
        """Return a line for each shape, the most frequent first, with what helps."""
        lines = []
        for (name, frame), (requests, documents) in self._sorted():
            where = f" ({frame})" if frame else ""
            num = f", {documents:,} documents" if documents else ""
            advice = f"; {ADVICE[name]}" if name in ADVICE else ""
            lines.append(f"{name}{where}: {requests:,} requests{num}{advice}")
        return lines

    def _sorted(self) -> list[tuple[tuple[str, str], tuple[int, int]]]:
        return sorted(self._counts.items(), key=lambda item: -item[1][0])
