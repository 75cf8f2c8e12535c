"""Lines that agents write at the head of a prompt, and that change from request to request.

Each is named with the switch of the program that writes it. Those that are meant for one provider
alone mean nothing to another server, and may be taken out on the way there.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ragboost.requests.wires.cache_marks import has_cache_mark
from ragboost.requests.wires.registry import ANY

BILLING_LINE = "x-anthropic-billing-header"


class VolatileLine(NamedTuple):
    start: str  # of the line
    name: str
    switch: str  # of the program that writes it
    owner: str  # domain of the provider for which it is meant


VOLATILE_LINES = (
    VolatileLine(
        start=BILLING_LINE,
        name="billing line of Claude Code",
        switch="CLAUDE_CODE_ATTRIBUTION_HEADER=0",
        owner="anthropic.com",
    ),
)


def volatile_line(text: str) -> VolatileLine | None:
    """Return the volatile line with which a text begins."""
    return next((line for line in VOLATILE_LINES if text.startswith(line.start)), None)


def foreign_lines(urls: Iterable[str]) -> tuple[VolatileLine, ...]:
    """Return the lines whose owner serves none of these addresses."""
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return tuple(
        line
        for line in VOLATILE_LINES
        if not any(host == line.owner or host.endswith(f".{line.owner}") for host in hosts)
    )


def without_lines(content: Any, lines: Iterable[VolatileLine]) -> Any:
    """Return instructions, a text or blocks, without lines; the same object if there is none.

    Of a text that goes on, only the line goes; a block with a breakpoint stays as it is.
    """
    starts = tuple(line.start for line in lines)
    if isinstance(content, str):
        return _without_first(content, starts) if content.startswith(starts) else content
    if not isinstance(content, list):
        return content
    kept = []
    is_same = True
    for block in content:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or not text.startswith(starts) or has_cache_mark(block):
            kept.append(block)
            continue
        is_same = False
        if (rest := _without_first(text, starts)).strip():
            kept.append({**block, "text": rest})
    return content if is_same else kept or ""


def without_volatile(fields: dict[str, Any], lines: Iterable[VolatileLine]) -> dict[str, Any]:
    """Return the fields of a body without lines in its instructions."""
    lines = tuple(lines)
    new = dict(fields)
    for name in ANY.instructions:
        if name in fields:
            new[name] = without_lines(fields[name], lines)
    for name in ANY.messages:
        messages = fields.get(name)
        if not (isinstance(messages, list) and messages and isinstance(messages[0], dict)):
            continue
        first = messages[0]
        if first.get("role") not in ANY.instruction_roles or "content" not in first:
            continue
        if (content := without_lines(first["content"], lines)) is not first["content"]:
            new[name] = [{**first, "content": content}, *messages[1:]]
    return new


def _without_first(text: str, starts: tuple[str, ...]) -> str:
    while text.startswith(starts):
        text = text.partition("\n")[2]
    return text
