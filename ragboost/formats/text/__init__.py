"""Find documents in one text: the known shapes, in the order in which they are tried.

The first that finds any is used: the operator's delimiters, XML tags, what is in a known frame,
JSON and LangChain pairs in tool results, numbered documents.
"""

from collections.abc import Sequence

from ragboost.config import Delimiters
from ragboost.formats.groups import TextGroup
from ragboost.formats.text import (
    delimiters,
    json_results,
    langchain,
    llama_index,
    numbered,
    xml_tags,
)
from ragboost.formats.text.frames import Frame, find_frames


def find_groups(
    text: str, *, registered: Sequence[Delimiters] = (), is_tool: bool = False
) -> list[TextGroup]:
    """Find groups of two documents or more.

    Args:
        registered: the operator's delimiters.
        is_tool: the text is a tool's result, so that it holds nothing else.
    """
    for marks in registered:
        if groups := delimiters.find(text, marks):
            return groups
    if not (is_tool or "\n" in text or ("<" in text and "</" in text)):  # one is found faster
        return []  # a question: all other shapes have lines or tags
    if groups := xml_tags.find(text):
        return groups
    for frame in find_frames(text):
        if groups := _in_frame(text, frame):
            return groups
    if is_tool and (groups := json_results.find(text) or langchain.find(text)):
        return groups
    return numbered.find(text, is_closed=is_tool)


def _in_frame(text: str, frame: Frame) -> list[TextGroup]:
    return (
        langchain.find(text, frame) or numbered.find(text, frame) or llama_index.find(text, frame)
    )
