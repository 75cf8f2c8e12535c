"""Find documents in one text: the shapes that we know, in the order in which they are tried.

The operator's delimiters, XML tags, what stands in a known frame (LangChain pairs, numbered
documents, LlamaIndex nodes), JSON and LangChain pairs in tool results, numbered documents. The
first shape that finds any counts for the text.
"""

from collections.abc import Sequence

from ragboost.config import Delimiters
from ragboost.formats import (
    delimiters,
    json_results,
    langchain,
    llama_index,
    numbered,
    xml_tags,
)
from ragboost.formats.groups import TextGroup
from ragboost.formats.regions import Region, find_regions


def find_groups(
    text: str, *, registered: Sequence[Delimiters] = (), is_tool: bool = False
) -> list[TextGroup]:
    """Find groups of two documents or more.

    Args:
        text: anything that somebody has put into a message.
        registered: the operator's delimiters.
        is_tool: a tool said it, so that it holds nothing but results.
    """
    for marks in registered:
        if groups := delimiters.find(text, marks):
            return groups
    if not (is_tool or "\n" in text or "</" in text):
        return []  # a question: all other shapes have lines or tags
    if groups := xml_tags.find(text):
        return groups
    for region in find_regions(text):
        if groups := _in_region(text, region):
            return groups
    if is_tool and (groups := json_results.find(text) or langchain.find(text)):
        return groups
    return numbered.find(text, is_closed=is_tool)


def _in_region(text: str, region: Region) -> list[TextGroup]:
    return (
        langchain.find(text, region)
        or numbered.find(text, region)
        or llama_index.find(text, region)
    )
