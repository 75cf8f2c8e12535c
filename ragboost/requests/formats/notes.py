"""The note behind documents that were moved: their order by relevance; and how to cite them.

A note costs at most eight tokens a document from four documents on: longer names are replaced by
places. Numbers that the model may cite get none: they are mapped in the answer.
"""

import re
from collections.abc import Iterator, Sequence

from ragboost.hints import order_hint
from ragboost.requests.formats.citations import CitationMap
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
# A line that asks for citations, also one that speaks of the number of a source.
_ASKS = re.compile(
    rf"{_CITES.pattern}|\bsources?\b|\bids?\s+(?:used|cited)\b|\bby the ids?\b"
    r"|\b(?:ids?|numbers?|index)\b.{0,20}\b(?:document|passage|chunk)"
    r"|\b(?:source|document|doc|passage|chunk)[ _](?:ids?|numbers?|index)\b",
    re.IGNORECASE,
)
_PLACE = r"(?:[nixk#]|(?:source|document|doc|passage|chunk)?[ _-]?(?:ids?|no|num|numbers?|index))"
# What stands for a number where one is mapped: `[n]`, `[citation:x]`, `"source": number`.
_STANDS_FOR = re.compile(
    rf"([\[【［](?:[^\W\d_]{{1,12}}[:： ]{{1,2}})?){_PLACE}(?=[\]】］])"
    r"|(\": ?)<?(?:int|integer|number)\b>?",
    re.IGNORECASE,
)
# A number, or what stands for it, in marks: `{1}`, `[S1]`, `<co: 1>`, `ref_1`, `##i$$`.
_SHOWN = re.compile(
    rf"[\[【［(<{{^|$@~†#]\s?(?:[A-Za-z]{{1,12}}[_:=#.-]{{1,2}}\s?|[A-Za-z]{{1,3}}(?=\d))?[\"']?"
    rf"(?:\d{{1,3}}|{_PLACE})[\"']?\s?[\])}}>|$#^†】］,;]"
    rf"|>(?:\d{{1,3}}|{_PLACE})<|[\[【［]\d|\w_\d{{1,3}}\b|#\d|[¹²³†]|\\cite|<(?:cite|ref)\b|index="
    r"|\b(?:source|document|doc|passage|chunk|context|citation|ref)_(?:ids?|no|numbers?|index)\b"
    r"|\"[^\"\n]{0,20}(?:sourc|doc|cit|ref|passage|chunk|quell|id)[^\"\n]{0,20}\"\s?:\s?\[?\"?\d",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"superscript|subscript|footnote|\bfußnote|hochgestellt|\bexposant|superíndice|hyperlink|\blinks?\b"
    r"|\banchor|href|\b(?:html|xml)\b|\bcurly|\bbraces|parenthes|round brackets|runde\w? klammern"
    r"|\blatex\b|\byaml\b|\bbackticks?\b|上标|脚注|角标",
    re.IGNORECASE,
)
# Numbers of documents without anything around them: `List the ids used`, `source no.`
_BARE = re.compile(
    r"\bids?\s+(?:used|cited|of)\b|by the ids?\b"
    r"|\b(?:numbers?|nos?\.|ids?|nummern?|numéros?|números?)(?!\w).{0,24}?\b(?:sourc|doc|passage|chunk"
    r"|quelle|fuente)|\b(?:sources?|documents?|docs?|passages?)\s+(?:numbers?|nos?\.|ids?)(?!\w)",
    re.IGNORECASE,
)
_FRAMED = re.compile(r"[\[{]|brackets?|eckige|corchetes|crochets|json", re.IGNORECASE)
_BY_NAME = re.compile(
    r"(?!.*\b(?:numbers?|ids?|nos?\.|index)(?!\w))"
    r".*\b(?:titles?|names?|filenames?|urls?|authors?|titel|titre|título)\b",
    re.IGNORECASE,
)
_ID = re.compile(r"\bids?\b", re.IGNORECASE)
_NOT = re.compile(r"\b(?:not|never|no|without|avoid|nicht|keine?n?)\b|n't\b", re.IGNORECASE)
_ANY = {str(number): str(number + 100) for number in range(100)}


def may_cite(text: str) -> bool:
    """Return True if a text outside of the documents speaks of their numbers, or asks for
    citations."""
    if len(text) > 2 * _MAX_SEARCHED:
        text = text[:_MAX_SEARCHED] + text[-_MAX_SEARCHED:]
    return _CITES.search(text) is not None


def asks_other_form(text: str, words: tuple[str, ...], gaps: tuple[str, ...], tags: str) -> bool:
    """Return True if a text asks for citations in a form that is not mapped in answers.

    Args:
        words: of the labels; `gaps` may stand between one and its number.
        tags: pattern of the names of the documents' own elements.
    """
    if len(text) > 2 * _MAX_SEARCHED:
        text = text[:_MAX_SEARCHED] + text[-_MAX_SEARCHED:]
    if _ASKS.search(text) is None:
        return False
    mapped = CitationMap(_ANY, words, gaps).of_answers
    own = re.compile(rf"</?(?:{tags})\b[^<>\n]{{0,80}}>(?!{_PLACE}<|\d)") if tags else None
    for asked in _asking(text):
        shown = own.sub("", asked) if own is not None else asked
        shown = _STANDS_FOR.sub(lambda found: f"{found[1] or found[2]}1", shown.replace("`", ""))
        edits, at, rest = mapped.edits(shown), 0, ""
        for edit in edits:
            rest, at = rest + shown[at : edit.start], edit.end
        rest += shown[at:]
        if _SHOWN.search(rest):
            return True
        if not edits and _BARE.search(rest) and not _FRAMED.search(asked):
            return True
        if _BY_NAME.match(rest):
            continue
        word = _FORMS.search(rest) or (None if edits else _ID.search(rest))
        if word is not None and not _NOT.search(rest, 0, word.start()):
            return True
    return False


def _asking(text: str) -> Iterator[str]:
    """Yield the lines that ask for citations, each with the paragraph behind its colon."""
    asked = ""
    for line in map(str.strip, text.splitlines()):
        if asked and line:
            asked += f"\n{line}"
            continue
        if asked:
            yield asked
        asked = ""
        if _ASKS.search(line):
            if line.endswith((":", "：")):
                asked = line
            else:
                yield line
    if asked:
        yield asked


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
