"""The note behind documents that were moved: their order by relevance.

A note costs at most eight tokens a document from four documents on: longer names are replaced by
places. Numbers that the model may cite get none: they are mapped in the answer.
"""

import re
from collections.abc import Sequence

from ragboost.hints import order_hint
from ragboost.requests.formats.groups import Group, TextGroup

_MAX_NAME = 8  # characters on average, with quotation marks; a file name has five tokens and more
# Instructions that let the model cite numbers, in the languages of the common templates.
_CITES = re.compile(
    r"\[(?:\d+|n|i|x|id|no|ID:\s*\w+|number|source_id|citation)\]"
    r"|\b(?:cit(?:e|es|ed|ing|ation|ations)|quot(?:e|ing)|referenc\w+|footnotes?|attribut\w+)\b"
    r"|\bzitier|\bquellen|\bcitez|\bcita\b|\bcitar|\bfuentes?\b|引用|出处|出處|来源|來源|参考|參考|標注|标注|出典|인용|출처"
    r"|\b(?:document|doc|source|passage|context|number|no\.?|chunk|article|text)s?\s*(?:[#№]\s*)?\d",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"\[(?:\d{1,2}|n|i|x|no|number)\]", re.IGNORECASE)
_MAX_SEARCHED = 65_536


def may_cite(text: str) -> bool:
    """Return True if a text outside of the documents speaks of their numbers, or asks for
    citations."""
    if len(text) > 2 * _MAX_SEARCHED:
        text = text[:_MAX_SEARCHED] + text[-_MAX_SEARCHED:]
    return _CITES.search(text) is not None


def cites_numbers(text: str) -> bool:
    """Return True for a short text that cites by numbers, as in `[1]`, or asks for it."""
    return len(text) <= _MAX_SEARCHED and "[" in text and _NUMBERED.search(text) is not None


def note(group: Group, order: Sequence[int], *, cites: bool, template: str | None) -> str:
    """Return what the model is told about documents in another order; empty if nothing.

    Args:
        order: the client's place of the document at each place.
        cites: the model may cite the client's numbers.
        template: of the order hint; None without one.
    """
    if template is None or (cites and group.is_numbered):
        return ""
    by_relevance = sorted(range(len(order)), key=order.__getitem__)
    hint = order_hint(_labels(group, order), by_relevance, template=template)
    return hint.text if hint is not None else ""


def _labels(group: Group, order: Sequence[int]) -> list[str]:
    names = [group.blocks[i].name for i in order]
    is_short = sum(map(len, names)) <= _MAX_NAME * len(names)
    if all(names) and len(set(names)) == len(names) and is_short:
        return names
    if isinstance(group, TextGroup) and group.is_numbered:
        return [group.number(at) for at in range(len(order))]
    return [f"document {place}" for place in range(1, len(order) + 1)]
