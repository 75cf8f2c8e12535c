"""Documents as list elements: Anthropic's blocks, and the results of an OpenAI `file_search_call`.

Whole elements move, but none across the caller's cache breakpoint, which stays at its place.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ragboost.requests.formats.groups import DocumentBlock, ListGroup, hint_name, text_of
from ragboost.requests.wires.cache_marks import has_cache_mark


def find_blocks(content: list[Any]) -> list[ListGroup]:
    return list(_groups(content, is_document_block, _block))


def find_file_search_results(results: list[Any]) -> list[ListGroup]:
    return list(_groups(results, lambda value: text_of(value) is not None, _result))


def is_document_block(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in ("document", "search_result")


def has_citations(content: list[Any]) -> bool:
    """Return True if responses cite these blocks by their position."""
    citations = [value.get("citations") for value in content if is_document_block(value)]
    return any(isinstance(each, dict) and each.get("enabled") for each in citations)


def _groups(
    content: list[Any],
    is_document: Callable[[Any], bool],
    block: Callable[[int, Any], DocumentBlock],
) -> Iterator[ListGroup]:
    run: list[DocumentBlock] = []
    for at, value in enumerate([*content, None]):
        if is_document(value):
            run.append(block(at, value))
            if not has_cache_mark(value):
                continue
        if len(run) > 1:
            yield ListGroup(content, tuple(run), run[-1].end)
        run = []


def _block(at: int, value: Any) -> DocumentBlock:
    return DocumentBlock(at, at + 1, _text(value), name=hint_name(value.get("title")))


def _result(at: int, value: Any) -> DocumentBlock:
    found = text_of(value)
    return DocumentBlock(at, at + 1, found[1] if found else None)


def _text(value: Any) -> str | None:
    """Return the only text of a block; None if it has none or several."""
    if value["type"] == "document":
        source = value.get("source")
        if not isinstance(source, dict) or source.get("type") != "text":
            return None
        data = source.get("data")
        return data if isinstance(data, str) and data.strip() else None
    content = value.get("content")
    if not isinstance(content, list) or len(content) != 1:
        return None
    found = text_of(content[0])
    return found[1] if found and found[0] == "text" else None
