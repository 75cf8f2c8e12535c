"""Documents below headers in a container: LlamaIndex's metadata, LangChain's `Source`/`Content`.

All headers have the same keys, or keys that only loaders write. Outside of a container a header
does not say where the last document ends, nor whether a document contains such a header itself.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ragboost.requests.formats.frames.candidate import Candidate, HiddenParts, why_ordered
from ragboost.requests.formats.frames.containers import Container, Surroundings
from ragboost.requests.formats.frames.not_documents import is_record
from ragboost.requests.formats.frames.siblings import common_separator
from ragboost.requests.formats.frames.spans import check_number, lines, strip
from ragboost.requests.formats.groups import DocumentBlock
from ragboost.requests.formats.instructions.questions import has_odd_end

_KEY = re.compile(r"\n([^\W\d]\w{0,40}):(?=[ \t\r\n])([^\n]*)")
_SINGLE_KEYS = ("source", "title", "url", "id", "name")  # others could be prose without a `_`
_TEXT_KEYS = ("content", "text", "page_content", "passage", "document", "body", "snippet")
_MIN_CHARS = 24


class _Header(NamedTuple):
    start: int
    end: int  # where the text begins
    keys: tuple[str, ...]


def find(
    text: str, hidden: HiddenParts, around: Surroundings, *, is_closed: bool
) -> Iterator[Candidate]:
    """Find the documents of each container.

    Args:
        is_closed: the text ends with the last document.
    """
    whole = (Container(*strip(text, 0, len(text)), len(text)),) if is_closed else ()
    for where in (*around.containers, *whole):
        if where.start in hidden:
            continue
        headers = [h for h in _headers(text, where) if h.start not in hidden]
        headers = _siblings(text, headers, where)
        if len(headers) < 2:
            continue
        if order := why_ordered([_fields(text, header) for header in headers]):
            frame = ", ".join(headers[0].keys)
            yield Candidate(where.start, where.start, frame, order=order)  # hides nothing
            continue
        outside = (Container(0, where.start, 0), Container(where.close, len(text), 0))
        others = [h for part in outside for h in _headers(text, part, is_begun=False)]
        if any(header.keys == headers[0].keys for header in others):
            frame = ", ".join(headers[0].keys)
            yield Candidate(where.start, len(text), frame, problem="headers outside the container")
        else:
            yield _candidate(text, headers, where, around)
        return


def _headers(text: str, where: Container, *, is_begun: bool = True) -> list[_Header]:
    """Return the runs of `key: value` lines that end with a text's key or above a blank line.

    Args:
        is_begun: only if the first one stands where the container begins.
    """
    found: list[_Header] = []
    start, end, keys = where.start, where.start, list[str]()
    for line in lines(text, _KEY, [where[:2]]):
        match = line.match
        if line.start != end or not keys:
            if is_begun and not found and line.start > where.start:
                return []
            start, keys = line.start, []
        keys.append(match[1])
        end = line.end + 1
        is_text = match[1].lower() in _TEXT_KEYS and len(keys) > 1
        if is_text or text[end : end + 1] == "\n" or text.startswith("\r\n", end):
            found.append(_Header(start, match.start(2) - 1 if is_text else end, tuple(keys)))
            keys = []
            check_number(found)
    return found


def _siblings(text: str, headers: list[_Header], where: Container) -> list[_Header]:
    """Return the headers with the keys of the first one, and those that another loader may have
    written or that stand in a document."""
    if not headers or headers[0].start != where.start:
        return []
    keys = headers[0].keys
    if is_record(keys) or (len(keys) == 1 and "_" not in keys[0] and keys[0] not in _SINGLE_KEYS):
        return []
    loaders = {key for key in keys if "_" in key}
    return [
        header
        for header in headers
        if header.keys == keys
        or (
            not loaders.isdisjoint(header.keys)
            and text[max(0, header.start - 2) : header.start] == "\n\n"
        )
    ]


def _fields(text: str, header: _Header) -> dict[str, str]:
    parts = [line.partition(":") for line in text[header.start : header.end].split("\n")]
    return {key: value.strip() for key, _, value in parts}


def _are_alike(headers: Sequence[_Header]) -> bool:
    """Return True if the headers have the same keys, or only keys of loaders (`page_label`): a page
    has one that a text file lacks. `Title` above `file_path` may stand in a document."""
    keys = {header.keys for header in headers}
    return len(keys) == 1 or all("_" in key for each in keys for key in each)


def _candidate(
    text: str, headers: Sequence[_Header], where: Container, around: Surroundings
) -> Candidate:
    frame = ", ".join(headers[0].keys)
    starts = [header.start for header in headers]
    if not _are_alike(headers):
        return Candidate(starts[0], where.end, frame, problem="headers with different keys")
    gaps = [text[strip(text, h.end, s)[1] : s] for h, s in zip(headers, starts[1:], strict=False)]
    separator = common_separator(gaps)
    blocks: list[DocumentBlock] = []
    for header, stop in zip(
        headers, [*(s - len(separator) for s in starts[1:]), where.end], strict=True
    ):
        stop = max(strip(text, header.start, stop)[1], header.end - 1)
        first, last = strip(text, header.end, stop)
        blocks.append(DocumentBlock(header.start, stop, text[first:last] or None, first, last))
    header_in_text = re.compile(r":[^\n]*\n".join(headers[0].keys) + ":")
    if (
        min(block.text_end - block.text_start for block in blocks) < _MIN_CHARS
        or any(header_in_text.match(text, block.text_start) for block in blocks)
        or len({gap.count("\n") for gap in gaps}) > 1
        or has_odd_end(text, [block[3:5] for block in blocks])
        or around.has_odd_rule([block[:2] for block in blocks])
    ):
        return Candidate(starts[0], where.end, frame, problem="headers that do not stand alike")
    return Candidate(starts[0], where.end, frame, tuple(blocks), where.close)
