"""Documents found by what comes back in the traffic: found soon, never torn, and bounded."""

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.requests.formats.evidence.evidence import DocumentSpan, Evidence
from ragboost.requests.formats.evidence.line_digests import Digests, read_lines
from ragboost.requests.formats.evidence.list_model import ListModel
from ragboost.requests.formats.evidence.moved_lines import moved_lines
from ragboost.requests.formats.evidence.traffic import Traffic
from ragboost.requests.formats.frames import scan
from tests.requests.formats.evidence.evidence_attack import (
    CORPORA,
    documents_world,
    interrupted_world,
    long_world,
    torn,
    worlds,
)
from tests.requests.formats.evidence.evidence_worlds import (
    JOINS,
    TEMPLATES,
    Join,
    Prompt,
    Template,
    corpus,
    paragraph,
    problem,
    sentence,
    write,
)

BLANK_LINES = JOINS["blank lines"]
QUESTION_BEHIND = TEMPLATES["question behind"]
NUMBERED_RULES = Template(
    "1. Answer in one sentence.\n2. Name your source.\n\n", "\n\nQuestion: {q}"
)
WITH_MARKS = ["[1]", "[1] and blank lines", "## title", "=== name ===", "Source and Content"]


def prompts(
    seed: int,
    num: int = 16,
    *,
    join: Join = BLANK_LINES,
    template: Template = QUESTION_BEHIND,
    most: int = 1,
) -> list[Prompt]:
    """Make requests with four of ten documents each, in random orders."""
    rng = random.Random(seed)
    documents = list(enumerate(corpus(rng, 10, most=most)))
    return [
        write(rng.sample(documents, 4), join, template, sentence(rng)[:-1] + "?")
        for _ in range(num)
    ]


def cut(
    evidence: Evidence,
    text: str,
    *,
    tenant: str = "a",
    is_first_turn: bool = True,
    marks: Sequence[int] = (),
) -> tuple[DocumentSpan, ...]:
    return evidence.cut(text, tenant=tenant, is_first_turn=is_first_turn, marks=marks)


def first_found(seed: int, *, has_marks: bool = False, **fields: object) -> int:
    """Return the request from which on all documents are found; none may be torn."""
    evidence, nums = Evidence(), []
    for prompt in prompts(seed, **fields):  # type: ignore[arg-type]
        spans = cut(evidence, prompt.text, marks=prompt.labels if has_marks else ())
        assert problem(prompt, spans) == ""
        nums.append(len(spans))
    return max((n + 1 for n, num in enumerate(nums) if num < 4), default=0) + 1


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_documents_are_found_after_they_came_back(join: Join, template: Template) -> None:
    found = sorted(first_found(seed, join=join, template=template) for seed in range(5))
    assert found[0] >= 4
    assert found[2] <= 8


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_documents_of_several_paragraphs_are_found_later(join: Join) -> None:
    found = sorted(first_found(seed, num=30, join=join, most=3) for seed in range(5))
    assert found[2] <= 14


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("name", WITH_MARKS)
def test_the_end_of_the_last_document_is_found_where_only_its_beginning_is_marked(
    name: str, template: Template
) -> None:
    fields = {"join": JOINS[name], "template": template, "most": 3}
    found = sorted(first_found(seed, has_marks=True, **fields) for seed in range(5))
    assert found[0] >= 4
    assert found[2] <= 7


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_torn_and_no_template_moves(seed: int) -> None:
    for world, _ in zip(worlds(random.Random(seed)), range(11), strict=False):
        assert torn(world) == [], world.name


@pytest.mark.parametrize("kind", CORPORA)
def test_nothing_is_torn_where_documents_begin_with_marks(kind: str) -> None:
    for seed in range(8):
        world = documents_world(random.Random(seed), kind, WITH_MARKS)
        assert torn(world, has_marks=True) == [], world.name


@pytest.mark.parametrize("has_marks", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_torn_in_long_traffic_whose_templates_and_documents_change(
    seed: int, has_marks: bool
) -> None:
    for n in range(3):
        world = long_world(random.Random(f"{seed}.{n}"))
        assert torn(world, has_marks=has_marks) == [], world.name


def test_a_heading_among_documents_with_marks_stays_in_its_place() -> None:
    for seed in range(40):
        assert torn(interrupted_world(random.Random(seed)), has_marks=True) == [], seed


@pytest.mark.parametrize("end", ["", "\n\nAnswer:"])
@pytest.mark.parametrize("num", [8, 11, 40])
def test_the_tail_of_a_new_template_is_no_document(num: int, end: str) -> None:
    """It stands behind the documents in every text that has it, but not in the earlier ones."""
    old = Template("Question: {q}\n\n", end)
    new = Template(old.head, f"\n\nContext:\n\n{'You are an assistant for tenants. ' * 6}{end}")
    for seed in range(40):
        rng, evidence = random.Random(seed), Evidence()
        questions = [sentence(rng)[:-1] + "?" for _ in range(3)]
        for template, size, count in ((old, 9, num), (new, 6, 6)):
            documents = list(enumerate(corpus(rng, size, most=1)))
            for _ in range(count):
                chosen = rng.sample(documents, 4)
                prompt = write(chosen, BLANK_LINES, template, rng.choice(questions))
                assert problem(prompt, cut(evidence, prompt.text)) == ""


def test_a_last_document_without_a_certain_end_stays_while_the_others_move() -> None:
    evidence, rng = Evidence(), random.Random(1)
    *earlier, last = prompts(1, join=JOINS["[1]"], most=3)
    for prompt in earlier:
        cut(evidence, prompt.text, marks=prompt.labels)
    head, _, question = last.text.rpartition("\n\nQuestion: ")
    text = f"{head}\n\n{paragraph(rng)}\n\nQuestion: {question}"
    spans = cut(evidence, text, marks=last.labels)
    assert [span.start for span in spans] == list(last.labels[:3])
    assert [span.end for span in spans] == [span.end for span in last.documents[:3]]


def test_nothing_is_cut_before_three_requests_agree() -> None:
    for seed in range(20):
        evidence = Evidence()
        assert not any(cut(evidence, prompt.text) for prompt in prompts(seed, 3))


def test_one_order_teaches_nothing() -> None:
    rng, evidence = random.Random(1), Evidence()
    documents = list(enumerate(corpus(rng, 6)))
    for _ in range(30):
        text = write(documents, BLANK_LINES, QUESTION_BEHIND, sentence(rng)).text
        assert not cut(evidence, text)


def test_a_tenant_learns_nothing_from_another() -> None:
    evidence = Evidence()
    *earlier, last = prompts(1)
    for prompt in earlier:
        cut(evidence, prompt.text)
    assert not cut(evidence, last.text, tenant="b")
    assert cut(evidence, last.text)


def test_a_text_is_cut_in_later_turns_as_in_the_first() -> None:
    evidence = Evidence()
    first, *middle, late, unseen = prompts(1)
    assert not cut(evidence, first.text)
    for prompt in middle:
        cut(evidence, prompt.text)
    spans = cut(evidence, late.text)
    assert spans
    assert cut(evidence, late.text, is_first_turn=False) == spans
    assert not cut(evidence, first.text, is_first_turn=False)
    assert not cut(evidence, unseen.text, is_first_turn=False)


def test_a_text_with_equal_documents_is_left_alone() -> None:
    evidence, rng = Evidence(), random.Random(2)
    documents = list(enumerate(corpus(rng, 10)))
    for prompt in prompts(2):
        cut(evidence, prompt.text)
    chosen = rng.sample(documents, 3)
    text = write([*chosen, chosen[0]], BLANK_LINES, QUESTION_BEHIND, "Who?").text
    assert not cut(evidence, text)


def test_documents_are_found_again_long_after_a_text_with_equal_ones() -> None:
    evidence, num_cut = Evidence(), 0
    first, *later = prompts(3, 120)
    for prompt in later[:8]:
        cut(evidence, prompt.text)
    document = first.text[slice(*first.documents[0])]
    assert not cut(evidence, f"{first.text[: first.documents[-1].end]}\n\n{document}")
    for prompt in later[8:]:
        num_cut += bool(cut(evidence, prompt.text))
    assert num_cut > 30


def test_trying_a_text_says_what_learning_from_it_would_and_changes_nothing() -> None:
    evidence = Evidence()
    for prompt in prompts(4):
        tried = evidence.cut(prompt.text, tenant="a", is_first_turn=True, learns=False)
        again = evidence.cut(prompt.text, tenant="a", is_first_turn=True, learns=False)
        assert tried == again == cut(evidence, prompt.text)
    assert evidence.cut(prompt.text, tenant="b", is_first_turn=True, learns=False) == ()
    assert len(evidence._tenants) == 1


def test_a_text_that_came_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, texts = Evidence(), [prompt.text for prompt in prompts(1)]
    spans = [cut(evidence, text) for text in texts]
    monkeypatch.setattr("ragboost.requests.formats.evidence.evidence.read_lines", None)
    assert [cut(evidence, text) for text in texts] == spans


def test_texts_that_share_only_their_template_are_compared_with_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        "ragboost.requests.formats.evidence.traffic.moved_lines",
        lambda *texts: calls.append(texts) or moved_lines(*texts),
    )
    evidence = Evidence()
    for seed in range(40):
        assert cut(evidence, prompts(seed, 1, most=3)[0].text) == ()
        if seed == 10:
            calls.clear()  # the first ones are compared with all those before them
    assert calls == []


def test_the_model_of_a_template_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        "ragboost.requests.formats.evidence.traffic.ListModel",
        lambda *texts: calls.append(texts) or ListModel(*texts),
    )
    evidence = Evidence()
    found = [len(cut(evidence, prompt.text)) for prompt in prompts(1, 120, most=3)]
    assert found[-80:] == [4] * 80
    assert len(calls) <= 16


def test_a_text_with_other_lines_at_its_ends_shows_all_its_moved_lines() -> None:
    rng = random.Random(1)
    for _ in range(200):
        words = [f"line {n} of the text, which is long enough" for n in range(9)]
        texts = ["\n".join(rng.sample(words, rng.randint(2, 9))) for _ in range(2)]
        first, second = (Digests(read_lines(text), []) for text in texts)
        places = {key: at for at, key in enumerate(second.keys)}
        common = [key for key in first.keys if key in places]
        inverted = {
            key
            for (i, a), (j, b) in combinations(enumerate(common), 2)
            if places[a] > places[b]
            for key in (a, b)
        }
        assert set(moved_lines(first, second).keys) == inverted


def test_two_tails_behind_one_head_leave_the_last_document_in_place() -> None:
    """Whatever the tail is, it is no part of a document."""
    evidence, num_cut = Evidence(), 0
    other = Template(QUESTION_BEHIND.head, f"\n\n{paragraph(random.Random(1))}\n\n{{q}}")
    for first, second in zip(prompts(1, 20), prompts(1, 20, template=other), strict=True):
        for prompt in (first, second):
            spans = cut(evidence, prompt.text)
            num_cut += bool(spans)
            assert problem(prompt, spans) == ""
    assert num_cut


def test_texts_that_cannot_hold_documents_are_left_alone() -> None:
    evidence = Evidence()
    for text in ("a\n\n" * 100_000, "\n" * 300_000, "- \n" * 900, "a\nb\nc"):
        for n in range(6):
            assert cut(evidence, f"{text}{n}") == ()


def test_memory_is_bounded_however_many_beginnings_and_tenants_there_are() -> None:
    evidence, rng = Evidence(), random.Random(1)
    for n in range(400):
        lines = [f"line {rng.random()} of a text that says nothing" for _ in range(20)]
        text = "\n".join([f"beginning {rng.random()}", *lines])
        cut(evidence, text, tenant=str(n % 100))
        cut(evidence, text, tenant="a")
    assert len(evidence._tenants) <= 64
    traffic = evidence._tenants.peek("a").traffic
    assert len(traffic) <= 64
    assert traffic.size <= 8 << 20
    assert evidence._tenants.size <= 64 << 20


def test_memory_of_one_beginning_is_bounded_however_many_lines_come() -> None:
    traffic, rng = Traffic(), random.Random(1)
    for _ in range(150):
        lines = [f"line {rng.random()} of a text" for _ in range(rng.choice((4, 4, 900)))]
        traffic.add(Digests(read_lines("\n".join(lines)), []))
        assert len(traffic.texts) <= 64
        assert traffic.size_bytes <= 2 << 20


PARAGRAPHS = st.sampled_from(
    [f"{name} is what this paragraph of the text is about." * 4 for name in "abcdefgh"]
    + ["short", "", " ", "\n", "line\nand line", "Source: x", "```", "---", "[2] see", "\ud800"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(PARAGRAPHS, max_size=9), min_size=6, max_size=24))
def test_spans_are_in_order_and_apart_and_without_white_space(
    requests: list[list[str]],
) -> None:
    evidence = Evidence()
    for paragraphs in requests:
        text = "Answer from this:\n\n" + "\n\n".join(paragraphs)
        spans = cut(evidence, text)
        ends = [0, *(span.end for span in spans)]
        assert all(end <= span.start for end, span in zip(ends, spans, strict=False))
        for span in spans:
            body = text[span.start : span.end]
            assert body == body.strip() != ""


@pytest.mark.parametrize(
    "label", ["[3]", "3.", "Document 3:", "**Document 3:**", "--- Page 3:", "doc_3:", "दस्तावेज़ 3:"]
)
def test_a_label_in_front_of_a_line_is_no_part_of_its_text(label: str) -> None:
    (line,) = read_lines(f"{label} The lease was signed in May.")
    (same,) = read_lines("[1] The lease was signed in May.")
    assert (line.number, line.key) == (3, same.key)


@pytest.mark.parametrize(
    ("template", "num"), [(QUESTION_BEHIND, 2), (NUMBERED_RULES, 0)], ids=["inside", "before"]
)
def test_a_numbered_list_in_a_document_or_in_the_template_is_no_list_of_documents(
    template: Template, num: int
) -> None:
    nums = []
    for seed in range(5):
        rng, evidence = random.Random(seed), Evidence()
        documents = list(enumerate(corpus(rng, 10, most=2)))
        for _, paragraphs in documents[:num]:
            paragraphs.append("\n".join(f"{n}. {sentence(rng)}" for n in range(1, 4)))
        for _ in range(9):
            prompt = write(rng.sample(documents, 4), BLANK_LINES, template, sentence(rng))
            spans = cut(evidence, prompt.text, marks=scan(prompt.text).marks)
            assert problem(prompt, spans) == ""
        nums.append(len(spans))
    assert sorted(nums)[1] == 4


def test_examples_that_end_as_the_prompt_does_are_left_alone() -> None:
    rng, evidence = random.Random(1), Evidence()
    pool = [f"Facts: {paragraph(rng, 300)}\n\nAnswer: {sentence(rng)}" for _ in range(10)]
    for _ in range(20):
        facts = f"Facts: {paragraph(rng, 300)}\n\nAnswer:"
        assert not cut(evidence, "\n\n".join(["As here.", *rng.sample(pool, 4), facts]))
