"""Random sequences of prompts that try to make evidence tear documents or move a template."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ragboost.requests.formats.evidence.evidence import Evidence
from tests.requests.formats.evidence.evidence_worlds import (
    JOINS,
    TEMPLATES,
    Prompt,
    Template,
    corpus,
    paragraph,
    problem,
    sentence,
    write,
)

Documents = list[list[str]]
INSTRUCTIONS = (
    "Be brief.",
    "Never mention the context in your answer, which has one sentence or two, and say so if you "
    "cannot find what is asked for in any of the texts that you were given.",
    "Answer in the language of the question, with the tone of a patient clerk who has read all of "
    "the files and who wants to go home soon, and quote no more than a line of them.",
    "Context:",
    "Example:\n\nQuestion: Who pays?\n\nAnswer: The tenant pays for what the tenant has broken, as "
    "the lease says in its clause on repairs, and the owner for all else.",
    "---",
    "# Task",
    "You are an assistant for tenants. " * 6,
)


class World(NamedTuple):
    """A sequence of prompts of one tenant."""

    name: str
    prompts: list[Prompt]
    has_documents: bool = True


def prefixes(rng: random.Random) -> Documents:
    """Make documents some of which begin or end as others do."""
    documents = corpus(rng, rng.randint(5, 9), most=3)
    for _ in range(rng.randint(1, 4)):
        whole = rng.choice(documents)
        at = rng.randint(0, len(whole))
        documents.append([*whole[:at], paragraph(rng)] if rng.random() < 0.6 else whole[at - 1 :])
    return [each for each in documents if each]


def extensions(rng: random.Random) -> Documents:
    documents = corpus(rng, rng.randint(5, 9), most=rng.choice((1, 3)))
    return [*documents, *([*each, paragraph(rng)] for each in rng.sample(documents, 3))]


def chunks(rng: random.Random) -> Documents:
    """Make chunks that overlap."""
    paragraphs = [paragraph(rng) for _ in range(rng.randint(8, 40))]
    size = rng.randint(2, 3)
    return [paragraphs[i : i + size] for i in range(len(paragraphs) - size + 1)]


def faqs(rng: random.Random) -> Documents:
    answers = [paragraph(rng) for _ in range(4)]
    return [
        [
            f"{rng.choice(('Question: ', '', 'Q: '))}{sentence(rng)[:-1]}?",
            f"Answer: {rng.choice(answers) if rng.random() < 0.3 else paragraph(rng, 160)}",
        ]
        for _ in range(rng.randint(6, 14))
    ]


def footers(rng: random.Random) -> Documents:
    footer = rng.choice(
        ("Read more.", "All rights reserved by the owner of this house, 2024, Ltd.")
    )
    return [[*each, footer] for each in corpus(rng, rng.randint(6, 14), most=2)]


def quotes(rng: random.Random) -> Documents:
    """Make documents that hold marks of lists, of templates and of other documents."""
    marks = (
        "---", "- one\n- two", "1. first\n2. second", "[2] see there", "## Title", "Question: who?",
        "Context:", "Helpful answer:", "</context>", "Be brief.", "=== file-3.md ===", "Note:",
        "Source: {'source': 'd3.pdf'}", "|---|---|", "Answer:", "}", "Document 2: the annex",
        "Never mention the context. Be brief.",
    )  # fmt: skip
    documents = corpus(rng, rng.randint(6, 14), most=3)
    for each in documents:
        for _ in range(rng.choice((0, 1, 1, 2))):
            each.insert(rng.randint(0, len(each)), rng.choice(marks))
    return documents


def short(rng: random.Random) -> Documents:
    return [[sentence(rng)] for _ in range(rng.randint(6, 14))]


def copies(rng: random.Random) -> Documents:
    documents = corpus(rng, rng.randint(5, 10), most=2)
    return [*documents, *rng.sample(documents, 2)]


CORPORA: dict[str, Callable[[random.Random], Documents]] = {
    "articles": lambda rng: corpus(rng, rng.randint(5, 20), most=rng.choice((1, 2, 4))),
    "prefixes": prefixes,
    "extensions": extensions,
    "chunks": chunks,
    "faqs": faqs,
    "footers": footers,
    "quotes": quotes,
    "short": short,
    "copies": copies,
}


def documents_world(
    rng: random.Random,
    kind: str,
    joins: Sequence[str] = (*JOINS, "blank lines", "line ends"),
    *,
    num: int = 0,
) -> World:
    """Make prompts of one application.

    Args:
        num: of prompts; 0: some.
    """
    documents = list(enumerate(CORPORA[kind](rng)))
    join = JOINS[rng.choice(joins)]
    templates = _templates(rng)
    most = rng.randint(2, min(6, len(documents)))
    varies = rng.random() < 0.4
    noise = rng.choice((0, 0, 0.3))
    prompts = []
    questions = [sentence(rng)[:-1] + "?" for _ in range(rng.choice((3, 50)))]
    for _ in range(num or rng.randint(8, 24)):
        size = rng.randint(2, min(7, len(documents))) if varies else most
        chosen = _retrieve(rng, documents, size)
        template = rng.choice(templates)
        if rng.random() < noise:
            template = _with_paragraph(rng, template)
        prompts.append(write(chosen, join, template, rng.choice(questions)))
    return World(f"{kind}, {len(templates)} templates, {most}, {varies=}, {noise=}", prompts)


def _retrieve(
    rng: random.Random, documents: list[tuple[int, list[str]]], size: int
) -> list[tuple[int, list[str]]]:
    """Choose documents, popular ones more often in half of all worlds, which the corpus decides."""
    if len(documents[0][1][0]) % 2:
        return rng.sample(documents, size)
    rest, chosen = list(documents), []
    for _ in range(size):
        weights = [1 / (rank + 1) for rank in range(len(rest))]
        chosen.append(rest.pop(rng.choices(range(len(rest)), weights)[0]))
    return chosen


def _with_paragraph(rng: random.Random, template: Template) -> Template:
    """Add a paragraph of this request alone beside the documents."""
    extra = paragraph(rng, rng.choice((20, 160)))
    if rng.random() < 0.5:
        return Template(f"{template.head}{extra}\n\n", template.tail)
    return Template(template.head, f"\n\n{extra}{template.tail}")


def _templates(rng: random.Random) -> list[Template]:
    """Make one to three templates, some with one head and several tails."""
    num = rng.choice((1, 1, 2, 3))
    found = [_template(rng) for _ in range(num)]
    if rng.random() < 0.6:
        found = [Template(found[0].head, each.tail) for each in found]
    return found


def _template(rng: random.Random) -> Template:
    if rng.random() < 0.4:
        return rng.choice(list(TEMPLATES.values()))
    head = "".join(f"{each}\n\n" for each in rng.sample(INSTRUCTIONS, rng.randint(0, 3)))
    tail = "".join(f"\n\n{each}" for each in rng.sample(INSTRUCTIONS, rng.randint(0, 3)))
    place = rng.choice(("before", "behind", "end", "none", "raw", "raw before"))
    if place == "before":
        head = f"{head}Question: {{q}}\n\n"
    elif place == "raw before":
        head = f"{{q}}\n\n{head}"
    elif place == "raw":
        tail = f"\n\n{{q}}{tail}"
    elif place == "behind":
        tail = f"\n\nQuestion: {{q}}{tail}"
    elif place == "end":
        tail = f"{tail}\n\nQuestion: {{q}}\nAnswer:"
    return Template(head, tail)


def even_world(rng: random.Random) -> World:
    """Make lists of one number of lines, whose documents have one to three."""
    lines = rng.randint(4, 8)
    documents = list(enumerate(corpus(rng, rng.randint(6, 14), most=rng.choice((2, 3)))))
    join, template, prompts = JOINS["blank lines"], _template(rng), []
    for _ in range(300):
        chosen = rng.sample(documents, rng.randint(2, 5))
        if sum(len(document) for _, document in chosen) == lines:
            prompts.append(write(chosen, join, template, sentence(rng)[:-1] + "?"))
    return World(f"even lists of {lines}", prompts[:24])


def interrupted_world(rng: random.Random) -> World:
    """Make lists with a heading among the documents, which must stay where it is."""
    documents = list(enumerate(corpus(rng, 12, most=2)))
    heading = rng.choice(INSTRUCTIONS)
    join, prompts = JOINS["blank lines"], []
    for _ in range(20):
        chosen = rng.sample(documents, 6)
        template = Template("Answer from these.\n\n", f"\n\n{heading}\n\n")
        first = write(chosen[:3], join, template, "")
        second = write(chosen[3:], join, Template("", "\n\nQuestion: {q}"), sentence(rng))
        at = len(first.text)
        spans = [type(span)(span.start + at, span.end + at) for span in second.documents]
        labels = [label + at for label in second.labels]
        prompts.append(
            Prompt(
                first.text + second.text,
                (*first.documents, *spans),
                (*first.labels, *labels),
                ((first.documents[-1].end, second.documents[0].start + at),),
            )
        )
    return World("interrupted", prompts)


def transcript_world(rng: random.Random) -> World:
    """Make a window that slides over what people said, over log lines, or over steps."""
    form = rng.choice(
        ("{n}", "User: {t}", "[{n}] {t}", "{n}. {t}", "- {t}", "2024-01-{n} INFO {t}")
    )
    join = rng.choice(("\n", "\n\n"))
    items = [form.format(n=n, t=paragraph(rng, rng.choice((20, 170)))) for n in range(60)]
    if form == "{n}":
        items = [paragraph(rng, 170) for _ in items]
    template, at, prompts = _template(rng), 0, []
    mode = rng.choice(("window", "grows", "subset", "edited"))
    order = list(range(12))
    for n in range(20):
        at += rng.randint(1, 3)
        if mode == "window":
            chosen = items[at : at + 6]
        elif mode == "grows":
            chosen = items[: 4 + n]
        elif mode == "subset":
            chosen = [items[i] for i in sorted(rng.sample(range(14), 5))]
        else:
            order = _edited(rng, order)
            chosen = [items[i] for i in order]
        text = template.head + join.join(chosen) + template.tail
        prompts.append(Prompt(text.replace("{q}", sentence(rng)), (), ()))
    return World(f"transcript {mode} {form!r}", prompts, has_documents=False)


def _edited(rng: random.Random, order: list[int]) -> list[int]:
    """Take an item out, add one, or move one."""
    order = list(order)
    action = rng.choice(("remove", "add", "move", "none"))
    if action == "remove" and len(order) > 4:
        order.pop(rng.randrange(len(order)))
    elif action == "add":
        order.append(max(order) + 1 if max(order) < 59 else order.pop(0))
    elif action == "move":
        order.insert(0, order.pop(rng.randrange(len(order))))
    return order


def long_world(rng: random.Random) -> World:
    """Make an application's traffic over time: templates, corpora and ways to join them change."""
    parts = [
        documents_world(rng, rng.choice(list(CORPORA)), num=rng.randint(40, 90))
        for _ in range(rng.randint(1, 3))
    ]
    prompts = [prompt for part in parts for prompt in part.prompts]
    if rng.random() < 0.5:  # as if they came from several users at once
        rng.shuffle(prompts)
    return World(" + ".join(part.name for part in parts), prompts)


def worlds(rng: random.Random) -> Iterator[World]:
    while True:
        for kind in CORPORA:
            yield documents_world(rng, kind)
        yield interrupted_world(rng)
        yield even_world(rng)
        yield transcript_world(rng)


def torn(world: World, *, has_marks: bool = False) -> list[tuple[int, str]]:
    """Return the prompts of a world that were cut wrongly, and how."""
    evidence, found = Evidence(), []
    for number, prompt in enumerate(world.prompts):
        marks = prompt.labels if has_marks else ()
        spans = evidence.cut(prompt.text, tenant="a", is_first_turn=True, marks=marks)
        why = problem(prompt, spans) if world.has_documents else "cut" if spans else ""
        if why:
            found.append((number, why))
    return found
