"""Documents in the tool results of one conversation: a repeated one becomes a reference.

Without state beyond one reading: the same conversation is always written the same way.
"""

from collections.abc import Sequence

from ragboost.config import Settings
from ragboost.formats.groups import DocumentBlock, Edit, Group, TextGroup, splice
from ragboost.formats.references import Standing
from ragboost.formats.text import find_groups
from ragboost.formats.text.spans import strip


class Results:
    """Reads the texts of a conversation from its beginning on.

    Attributes:
        num_referred: documents for which a reference stands.

    Args:
        settings: of formats, hints and de-duplication.
    """

    def __init__(self, settings: Settings) -> None:
        self.num_referred = 0
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._registered = settings.formats.delimiters
        self._standing = Standing(settings.hints.location_template)

    def read(self, text: str, *, is_tool: bool, documents: Sequence[str] = ()) -> str:
        """The text as the model shall see it.

        Args:
            text: of a message.
            is_tool: it is a tool's result: only there references are written.
            documents: the documents that stand in it, in order, if somebody knows; otherwise they
                are found by their marks.
        """
        groups: Sequence[Group] = _known(text, documents) or find_groups(
            text, registered=self._registered, is_tool=is_tool
        )
        edits: list[Edit] = []
        for group in groups:
            for block in group.blocks:
                edit = self._read_block(group, block, may_refer=is_tool and self._has_references)
                if edit is not None:
                    edits.append(edit)
        self.num_referred += len(edits)
        return str(splice(text, edits)) if edits else text

    def _read_block(self, group: Group, block: DocumentBlock, *, may_refer: bool) -> Edit | None:
        if block.text is None:
            return None
        reference = self._standing.reference(block.text) if may_refer else None
        if reference is None:
            self._standing.add(block.text)
            return None
        return group.referred(block, reference)


def _known(text: str, documents: Sequence[str]) -> list[TextGroup]:
    """The places of documents that stand one behind the other; none if one is not there."""
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
