"""Replace documents that tool results of a conversation repeat by references.

Depends on the conversation alone: the same messages always yield the same bytes.
"""

from collections.abc import Sequence

from ragboost.config import Settings
from ragboost.requests.formats import TooManyDocumentsError
from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.frames.spans import strip
from ragboost.requests.formats.groups import DocumentBlock, Edit, Group, TextGroup, splice
from ragboost.requests.formats.references import EarlierTexts, stands_alone


class RepeatedDocuments:
    def __init__(self, settings: Settings) -> None:
        self.num_referred = 0  # documents replaced by a reference so far
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._frames = settings.formats.frames
        self._earlier = EarlierTexts(settings.hints.location_template)

    def rewrite(self, text: str, *, is_tool: bool, documents: Sequence[str] = ()) -> str:
        """Return the next text of the conversation; in a tool's result, with references.

        Documents that are not given, in order, are found by their markup.
        """
        groups: Sequence[Group] = _known(text, documents)
        try:
            groups = groups or scan(text, frames=self._frames, is_tool=is_tool).groups
        except TooManyDocumentsError:
            return text
        may_refer = is_tool and self._has_references
        edits: list[Edit] = []
        for group in groups if may_refer else ():
            if documents or stands_alone(group, is_tool=is_tool):
                edits += self._earlier.edits(group)
        for group in groups:
            self._earlier.add(group)
        self.num_referred += len(edits)
        return str(splice(text, edits)) if edits else text


def _known(text: str, documents: Sequence[str]) -> list[TextGroup]:
    blocks: list[DocumentBlock] = []
    at = 0
    for document in documents:
        start = text.find(document, at)
        if start < 0:
            return []
        at = start + len(document)
        first, last = strip(text, start, at)
        if first < last:
            blocks.append(DocumentBlock(first, last, text[first:last], first, last))
    return [TextGroup(text, tuple(blocks), at)] if blocks else []
