"""Sequences of prompts with documents between templates, and a check of what was cut."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ragboost.requests.formats.evidence.evidence import DocumentSpan

WORDS = (
    *("lease", "rent", "tenant", "court", "water", "letter", "notice", "garden", "payment"),
    *("roof", "window", "deposit", "repair", "month", "owner", "clause", "agent", "heating"),
)
SCORES = random.Random(1)


class Join(NamedTuple):
    """How documents stand in a list."""

    label: Callable[[int], str] = lambda place: ""  # counts from 0
    between: str = "\n\n"
    header: Callable[[int], str] = lambda document: ""  # belongs to the document
    paragraph: str = "\n\n"  # between the paragraphs of one document
    footer: str = ""  # belongs to the document


class Template(NamedTuple):
    head: str  # may contain {q}
    tail: str


class Prompt(NamedTuple):
    text: str
    documents: tuple[DocumentSpan, ...]  # with headers, without labels
    labels: tuple[int, ...]  # where their labels begin
    fixed: tuple[tuple[int, int], ...] = ()  # what nothing may move across


JOINS = {
    "blank lines": Join(),
    "line ends": Join(between="\n", paragraph="\n"),
    "rules": Join(between="\n---\n"),
    "rules between blank lines": Join(between="\n\n---\n\n"),
    "dashes": Join(label=lambda place: "- ", between="\n", paragraph="\n  "),
    "asterisks": Join(label=lambda place: "* ", between="\n\n", paragraph="\n\n  "),
    "1.": Join(label=lambda place: f"{place + 1}. ", between="\n", paragraph="\n   "),
    "[1]": Join(label=lambda place: f"[{place + 1}] ", between="\n", paragraph="\n"),
    "[1] and blank lines": Join(label=lambda place: f"[{place + 1}] "),
    "## title": Join(header=lambda document: f"## File {document}.md\n\n"),
    "### title": Join(header=lambda document: f"### Title of {document}\n"),
    "=== name ===": Join(header=lambda document: f"=== file-{document}.md ===\n"),
    "Source and Content": Join(
        header=lambda document: f"Source: {{'source': 'd{document}.pdf'}}\nContent: "
    ),
    "Title, Score and Text": Join(
        header=lambda document: f"Title: File {document}\nScore: {SCORES.random():.3f}\nText: "
    ),
    "(score)": Join(header=lambda document: f"file-{document}.md (score: {SCORES.random():.2f})\n"),
    "score above": Join(header=lambda document: f"Score: {SCORES.random():.2f}\n"),
    "table": Join(header=lambda document: "| ", between="\n", paragraph=" | ", footer=" |"),
    "CRLF": Join(between="\r\n\r\n", paragraph="\r\n\r\n"),
}
TEMPLATES = {
    "question behind": Template("Answer from the context below.\n\n", "\n\nQuestion: {q}"),
    "question and answer": Template(
        "Use these pieces of context.\n", "\n\nQuestion: {q}\nHelpful answer:"
    ),
    "question before": Template("Question: {q}\n\n", ""),
    "question before a heading": Template("Question: {q}\n\nContext:\n", "\n"),
    "system": Template("You answer from these documents:\n\n", ""),
    "system with instructions": Template(
        "You answer questions.\n\nContext:\n", "\n\nNever mention the context. Be brief."
    ),
    "container": Template("Use <context></context>.\n\n<context>\n", "\n</context>\n\n- Be brief."),
}


def sentence(rng: random.Random) -> str:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(7, 16)))
    return f"{words.capitalize()} {rng.randint(0, 10**6)}."


def paragraph(rng: random.Random, least: int = 100) -> str:
    text = sentence(rng)
    while len(text) < least:
        text += " " + sentence(rng)
    return text


def corpus(rng: random.Random, num: int = 10, *, most: int = 3) -> list[list[str]]:
    """Make documents of up to `most` paragraphs."""
    return [
        [paragraph(rng, 170), *(paragraph(rng) for _ in range(rng.randint(0, most - 1)))]
        for _ in range(num)
    ]


def write(
    documents: Sequence[tuple[int, Sequence[str]]], join: Join, template: Template, question: str
) -> Prompt:
    """Write a prompt.

    Args:
        documents: the number in the corpus and the paragraphs of each.
    """
    text = template.head.replace("{q}", question)
    spans, labels = [], []
    for place, (number, paragraphs) in enumerate(documents):
        text += join.between if place else ""
        labels.append(len(text))
        text += join.label(place)
        start = len(text)
        text += join.header(number) + join.paragraph.join(paragraphs) + join.footer
        spans.append(DocumentSpan(start, len(text)))
    return Prompt(text + template.tail.replace("{q}", question), tuple(spans), tuple(labels))


def problem(prompt: Prompt, spans: Sequence[DocumentSpan]) -> str:
    """Say what would be torn if the spans changed places; empty if nothing."""
    why = _torn(prompt, spans)
    return "" if why and _changes_nothing_else(prompt, spans) else why


def _changes_nothing_else(prompt: Prompt, spans: Sequence[DocumentSpan]) -> bool:
    """Return True if the reversed spans give the same text as the reversed documents.

    So it is where all of them end with the same line, which may stay in its place.
    """
    documents, behind = [], 0
    for span in spans:
        touched = [d for d in prompt.documents if d.start < span.end and span.start < d.end]
        if not touched or touched[0].start < behind:
            return False
        behind = touched[-1].end
        is_labelled = span.start in prompt.labels
        documents.append(DocumentSpan(span.start if is_labelled else touched[0].start, behind))
    return _reversed(prompt.text, spans) == _reversed(prompt.text, documents)


def _reversed(text: str, spans: Sequence[DocumentSpan]) -> str:
    pieces, at = [], 0
    for span, other in zip(spans, reversed(spans), strict=True):
        pieces += [text[at : span.start], text[other.start : other.end]]
        at = span.end
    return "".join([*pieces, text[at:]])


def _torn(prompt: Prompt, spans: Sequence[DocumentSpan]) -> str:
    text = prompt.text
    starts = {span.start: i for i, span in enumerate(prompt.documents)}
    with_label = {at: i for i, at in enumerate(prompt.labels)}
    ends = {
        end: i
        for i, span in enumerate(prompt.documents)
        for end in range(span.start + len(text[span.start : span.end].rstrip()), span.end + 1)
    }
    behind = 0
    for span in spans:
        if span.start < behind:
            return f"spans overlap at {span.start}"
        behind = span.end
        first = starts.get(span.start, with_label.get(span.start))
        if first is None:
            return (
                f"a span begins inside at {span.start}: {text[span.start - 30 : span.start + 30]!r}"
            )
        last = ends.get(span.end)
        if last is None or last < first:
            return f"a span ends inside at {span.end}: {text[span.end - 30 : span.end + 30]!r}"
        is_labelled = prompt.labels[last] < prompt.documents[last].start
        if last > first and is_labelled and span.start in starts:
            return f"a span holds the label of another place at {span.start}"
    for start, end in prompt.fixed:
        if len({span.start >= end for span in spans}) > 1:
            return "documents move across what is fixed"
        if any(span.start < end and start < span.end for span in spans):
            return "what is fixed moves"
    bodies = [text[span.start : span.end] for span in spans]
    return "equal documents" if len(set(bodies)) < len(bodies) else ""
