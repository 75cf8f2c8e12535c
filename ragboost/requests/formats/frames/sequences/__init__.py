"""Find lists whose order is their content, whatever their frame: chats, logs, parts of a text."""

from ragboost.requests.formats.frames.sequences.fields import is_sequence
from ragboost.requests.formats.frames.sequences.texts import are_in_sequence, is_in_sequence

__all__ = ["are_in_sequence", "is_in_sequence", "is_sequence"]
