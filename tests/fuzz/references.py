"""Find hints and references in a payload that name nothing, or something else.

Reads the sentences that the documentation quotes: order hints, location hints, references to a
document's beginning and tool results.
"""

import re
from collections.abc import Iterator

from tests.fuzz.corpus import MARKER
from tests.fuzz.payload import Payload, strings
from tests.fuzz.requests import Asked

_LABEL = r"\[Doc_[A-Za-z0-9_.:~\-]+\]"
_HEAD = re.compile(rf"^({_LABEL})(?: ([^\n]*))?\n", re.MULTILINE)
_LOCATION = re.compile(r"Please refer to (\[Doc_.+?\]) in the previous conversation\.")
_ALL = "Please refer to all documents in the previous conversation."
_ORDER = re.compile(r"Documents by relevance, most relevant first: (.*)")
_QUOTED = re.compile(
    r'Please refer to the document that begins with "(.*?)" in the previous conversation\.'
)
_WORDS = ("Please refer", "by relevance", "[Doc_")
_WHOLE_RESULT = re.compile(r"\[Same as tool result (\d+) above\.\]")
_PASSAGE = re.compile(
    r'\n\[Same text as in tool result (\d+) above, from "(.*?)" to "(.*?)", (\d+) characters\.\]\n'
)
_POSITION = re.compile(r"document (\d{1,3})")


def dead_references(asked: Asked, payload: Payload) -> Iterator[str]:
    """Describe each label or hint that names nothing in this payload, or the wrong document."""
    seen = ""
    for text in payload.texts:
        if any(words in text for words in _WORDS):
            yield from _check_text(text, seen)
        seen += f"\n\x00\n{text}"
    question = "\n".join(payload.question_texts)
    yield from _check_order(asked, payload, question)
    yield from _check_given(asked, question)


def _check_text(text: str, before: str) -> Iterator[str]:
    for label in _LOCATION.findall(text):
        if label not in _heads(before):
            yield f"{label} is not in an earlier message"
    if _ALL in text and not _heads(before):
        yield "there are no documents in an earlier message"
    squeezed = " ".join(before.split())
    for found in _QUOTED.finditer(text):
        here = f"{squeezed} {' '.join(text[: found.start()].split())}"
        if here.count(found[1]) < 1:
            yield f"nothing earlier begins with {found[1]!r}"
    labelled: dict[str, str] = {}
    for head in _HEAD.finditer(text):
        named = head[0] if MARKER.search(head[0]) else head[0] + text[head.end() :].split("\n")[0]
        if labelled.setdefault(head[1], named) != named:
            yield f"two documents are labelled {head[1]}"


def _heads(text: str) -> set[str]:
    return {label for label, _ in _HEAD.findall(text)}


def _check_order(asked: Asked, payload: Payload, question: str) -> Iterator[str]:
    """Check the order hint of the latest turn: known names, in the client's order."""
    for listed in _ORDER.findall(question):
        names = [name for name in listed.split(" >> ") if not name.startswith("then the rest")]
        if len(set(names)) != len(names):
            yield f"the order names a document twice: {listed}"
        if asked.shape.is_ours:
            yield from _check_labels(asked, payload, names)
            continue
        for name in names:
            position = _POSITION.fullmatch(name)
            if position and len(asked.given) < int(position[1]):
                yield f"{name} of {len(asked.given)} documents"
            if not position and payload.whole.replace(listed, "").count(name.strip('"')) < 1:
                yield f"the order names {name}, which is nowhere"


def _check_labels(asked: Asked, payload: Payload, names: list[str]) -> Iterator[str]:
    """Check that labels follow the order in which the client gave the documents."""
    place = -1
    for name in names:
        text = _labelled(payload.whole, name)
        if text is None:
            yield f"the order names {name}, which is nowhere"
            return
        given = [i for i, d in enumerate(asked.given) if d.text and text.startswith(d.text)]
        if not given:
            yield f"the order names {name}, which was not given"
            return
        place = min((i for i in given if i > place), default=-1)
        if place < 0:
            yield f"{names} are not in the order of relevance"
            return


def _labelled(whole: str, label: str) -> str | None:
    """Return the text behind a label, or None."""
    found = None
    for head in _HEAD.finditer(whole):
        if head[1] == label:
            found = whole[head.end() : head.end() + 2000]
    return found


def _check_given(asked: Asked, question: str) -> Iterator[str]:
    """Check that the turn shows each of its documents, or refers to it."""
    if not asked.shape.is_ours or not asked.is_boosted or asked.move == "retry":
        return
    hidden = {d.text for d in asked.given if d.text and d.text not in question}
    if _ALL not in question and len(set(_LOCATION.findall(question))) < len(hidden):
        yield f"{len(hidden)} documents are left out without a location hint"


def with_tool_results(payload: Payload) -> str:
    """Return all texts, with references to tool results replaced by what they refer to."""
    results: list[str] = []
    whole = payload.whole
    for message in payload.decoded.get("messages") or ():
        if message.get("role") == "tool" and isinstance(message["content"], str):
            results.append(_expand(message["content"], results))
            whole += "".join(f"\n\x00\n{text}" for text in strings(results[-1]))
    return whole


def _expand(text: str, results: list[str]) -> str:
    text = _WHOLE_RESULT.sub(lambda found: results[int(found[1]) - 1], text)
    return _PASSAGE.sub(lambda found: _passage(found, results), text)


def _passage(found: re.Match[str], results: list[str]) -> str:
    source, size = results[int(found[1]) - 1], int(found[4])
    for start in range(len(source) - size + 1):
        passage = source[start : start + size]
        shown = passage.strip()
        first, last = (" ".join(part.split()) for part in (shown[:60], shown[-60:]))
        if (first, last) == (found[2], found[3]):
            return passage
    return found[0]
