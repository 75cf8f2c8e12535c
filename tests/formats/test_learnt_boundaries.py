"""Boundaries of documents that only blank lines separate, learnt from requests in other orders."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.config import Settings
from ragboost.formats import UnmarkedDocuments, UnmarkedDocumentsError, make_unmarked
from ragboost.formats.learnt_boundaries import NUM_ORDERS, BoundaryLearner
from tests.formats.joined_texts import Documents, JoinedTexts, paragraph
from tests.formats.rewriting import context_of, text_of, user

INTRO = "Answer from the following context:"
PLAIN = f"{INTRO}\n\n{{context}}\n\nQuestion: {{question}}"
TEMPLATES = {
    "blank lines": PLAIN,
    "line before the documents": f"{INTRO}\n{{context}}\n\nQuestion: {{question}}",
    "llama_index": "Context information is below.\n---------------------\n{context}\n"
    "---------------------\nGiven the context information and not prior knowledge, answer the "
    "query.\nQuery: {question}\nAnswer: ",
    "instructions behind": f"{INTRO}\n\n{{context}}\n\nNever mention the context in your answer, "
    "which is one sentence.\n\nQuestion: {question}",
}


def corpus(rng: random.Random, kind: str = "articles") -> Documents:
    shared = [paragraph(rng, f"shared {i}") for i in range(6)]
    if kind == "overlapping":
        return [[paragraph(random.Random(i + j), i + j) for j in (0, 1)] for i in range(40)]
    if kind == "footers":
        return [[paragraph(rng, i), shared[i % 3]] for i in range(40)]
    if kind == "boilerplate":
        return [
            [paragraph(rng, i), *rng.sample(shared, 2), paragraph(rng, f"{i} b")] for i in range(40)
        ]
    return [[paragraph(rng, f"{i} {j}") for j in range(rng.randint(1, 4))] for i in range(40)]


def learn(
    texts: JoinedTexts, num: int, learner: BoundaryLearner | None = None, *, tenant: str = "a"
) -> BoundaryLearner:
    learner = learner or BoundaryLearner()
    for _ in range(num):
        learner.cut(texts.draw()[0], tenant=tenant, is_first_turn=True)
    return learner


def boundaries(text: str, documents: list[str]) -> set[int]:
    found: set[int] = set()
    at = 0
    for document in documents:
        at = text.index(document, at)
        found |= {at, at + len(document)}
        at += len(document)
    return found


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_documents_are_found_once_they_returned_in_other_orders(template: str) -> None:
    rng = random.Random(7)
    texts = JoinedTexts(rng, corpus(rng), template)
    learner = learn(texts, 150)
    num = num_found = 0
    for _ in range(50):
        text, documents = texts.draw()
        spans = learner.cut(text, tenant="a", is_first_turn=True)
        assert {at for span in spans for at in span} <= boundaries(text, documents)
        num, num_found = num + len(documents), num_found + len(spans)
    assert num_found > 0.8 * num


@pytest.mark.parametrize("kind", ["articles", "overlapping", "footers", "boilerplate"])
@pytest.mark.parametrize("seed", range(5))
def test_no_document_is_cut(kind: str, seed: int) -> None:
    """Not by paragraphs that several documents have, nor where chunks overlap."""
    rng, learner = random.Random(seed), BoundaryLearner()
    texts = JoinedTexts(rng, corpus(rng, kind), PLAIN)
    for _ in range(150):
        text, documents = texts.draw()
        spans = learner.cut(text, tenant="a", is_first_turn=True)
        assert {at for span in spans for at in span} <= boundaries(text, documents)


def test_nothing_is_cut_before_enough_orders_were_seen() -> None:
    rng = random.Random(3)
    texts = JoinedTexts(rng, corpus(rng)[:6], PLAIN)
    learner = BoundaryLearner()
    for _ in range(NUM_ORDERS):
        assert not learner.cut(texts.draw(6)[0], tenant="a", is_first_turn=True)


def test_one_order_teaches_nothing() -> None:
    rng, learner = random.Random(3), BoundaryLearner()
    context = "\n\n".join(paragraph(rng, i) for i in range(6))
    for i in range(50):
        text = PLAIN.format(context=context, question=f"question {i}?")
        assert not learner.cut(text, tenant="a", is_first_turn=True)


def test_a_tenant_learns_nothing_from_another() -> None:
    rng = random.Random(3)
    texts = JoinedTexts(rng, corpus(rng), PLAIN)
    learner, text = learn(texts, 100), texts.draw()[0]
    assert not learner.cut(text, tenant="b", is_first_turn=True)
    assert learner.cut(text, tenant="a", is_first_turn=True)


def test_a_text_is_cut_in_later_turns_as_in_the_first() -> None:
    rng = random.Random(3)
    texts = JoinedTexts(rng, corpus(rng), PLAIN)
    learner, early = BoundaryLearner(), texts.draw()[0]
    assert not learner.cut(early, tenant="a", is_first_turn=True)
    learn(texts, 100, learner)
    late = texts.draw()[0]
    assert learner.cut(late, tenant="a", is_first_turn=True)
    assert learner.cut(late, tenant="a", is_first_turn=False)
    assert not learner.cut(early, tenant="a", is_first_turn=False)
    assert not learner.cut(texts.draw()[0], tenant="a", is_first_turn=False)


def test_what_every_request_has_stays_and_nothing_moves_across_it() -> None:
    rng = random.Random(5)
    heading = "Here are some more sources, which are less reliable than the first ones."
    documents = [[paragraph(rng, i)] for i in range(12)]
    learner, num_cut = BoundaryLearner(), 0
    for _ in range(200):
        chosen = ["".join(document) for document in rng.sample(documents, 6)]
        context = "\n\n".join([*chosen[:3], heading, *chosen[3:]])
        text = PLAIN.format(context=context, question=rng.random())
        spans = learner.cut(text, tenant="a", is_first_turn=True)
        at = text.index(heading)
        assert len({span.end <= at for span in spans}) <= 1
        assert not any(span.start <= at < span.end for span in spans)
        num_cut += bool(spans)
    assert num_cut > 100


PARAGRAPHS = st.sampled_from(
    [f"{name} is what this paragraph of the text is about." for name in "abcdefgh"]
    + [
        "short",
        "",
        " ",
        "\n",
        "line\nand line",
        "Source: x",
        "```",
        "---------------------",
        "\ud800",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(PARAGRAPHS, max_size=9), min_size=8, max_size=40), st.randoms())
def test_no_text_is_lost_or_doubled(requests: list[list[str]], rng: random.Random) -> None:
    shape = make_unmarked(Settings(formats={"learn_boundaries": True}), is_single=True)
    for paragraphs in requests:
        text = f"{INTRO}\n\n" + "\n\n".join(paragraphs)
        body = user(text)
        try:
            found = shape.find(body, tenant="a")
        except UnmarkedDocumentsError:
            continue
        if found is None:
            continue
        order = list(range(len(found.documents)))
        assert shape.replace(body, found, context_of(found, order)) == body
        rng.shuffle(order)
        written = text_of(shape.replace(body, found, context_of(found, order)))
        written, _, hint = written.partition("\n\nRead the documents")
        assert not Counter(text) - Counter(written + hint) or order == sorted(order)
        assert all(written.count(d.text) >= text.count(d.text) for d in found.documents)


@given(st.lists(st.lists(PARAGRAPHS, max_size=12), max_size=30))
def test_spans_are_in_order_and_apart(requests: list[list[str]]) -> None:
    learner = BoundaryLearner()
    for paragraphs in requests:
        text = "\n\n".join(paragraphs)
        spans = learner.cut(text, tenant="a", is_first_turn=True)
        assert all(span.start < span.end <= len(text) for span in spans)
        ends = [0, *(span.end for span in spans)]
        assert all(end <= span.start for end, span in zip(ends, spans, strict=False))


def test_large_texts_are_left_alone() -> None:
    learner = BoundaryLearner()
    for text in ("a\n\n" * 100_000, "\n" * 300_000, "\n\n".join(str(i) for i in range(400))):
        for i in range(6):
            assert learner.cut(f"{text}{i}", tenant="a", is_first_turn=True) == ()


def noticed(text: str, **fields: object) -> bool:
    shape: UnmarkedDocuments = make_unmarked(Settings(**fields), is_single=True)
    try:
        shape.find(user(text), tenant="a")
    except UnmarkedDocumentsError:
        return True
    return False


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_documents_without_boundaries_are_noticed(template: str) -> None:
    rng = random.Random(1)
    text = JoinedTexts(rng, corpus(rng), template).draw()[0]
    assert noticed(text)
    assert not noticed(text, formats={"in_text": False})


@pytest.mark.parametrize(
    "text",
    [
        "Who signed the lease?",
        "Summarise the following text.\n\nOne paragraph.\n\nAnother.",
        "You are a coding agent.\n\n" + "\n\n".join(f"Rule {i}. {'word ' * 40}" for i in range(9)),
        "Context information is below.\n-----\nOne paragraph.\n-----\nQuery: which?",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not noticed(text)
