from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ragboost
from ragboost.booster import MemorySessions, UsageTotals
from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.errors import InvalidDocumentError, RequestError
from ragboost.types import Document
from tests.index.paths import traverse
from tests.integrity import check_index


def booster(**sections: Any) -> ragboost.Booster:
    """Every document is 100 tokens long."""
    return ragboost.Booster(Settings.model_validate(sections), count_tokens=lambda _: 100)


def docs(*ids: int) -> list[Document]:
    return [Document(f"text of {i}", id=i) for i in ids]


def sent(context: Context) -> list[object]:
    return [document.id for document in context.documents]


def test_the_worked_example_of_context_ordering() -> None:
    """C1 {2,1,3} is cached; C6 {2,1,4} follows it, C8 {1,2,9} is reordered (paper, section 5.1)."""
    boost = booster().boost
    boost("q1", docs(2, 1, 3))

    c6, c7, c8 = boost("q6", docs(2, 1, 4)), boost("q7", docs(5, 7, 8)), boost("q8", docs(1, 2, 9))

    assert [sent(c) for c in (c6, c7, c8)] == [[2, 1, 4], [5, 7, 8], [2, 1, 9]]
    assert [c.predicted_cached_tokens for c in (c6, c7, c8)] == [200, 0, 200]
    assert (c6.hints, c7.hints) == ((), ())
    assert c8.hints[0].text == (
        "Documents by relevance, most relevant first: [Doc_1] >> [Doc_2] >> [Doc_9]"
    )


def test_the_worked_example_of_de_duplication() -> None:
    """First turn {1,2,4}, second turn {1,5,2}: only 5 is sent (paper, section 6)."""
    session = booster().session("user of C6")
    session.boost("first", docs(1, 2, 4))

    second = session.boost("second", docs(1, 5, 2))

    assert sent(second) == [5]
    assert second.positions == (-1, 0, -1)
    assert [(hint.kind, hint.text) for hint in second.hints] == [
        ("location", "Please refer to [Doc_1] in the previous conversation."),
        ("location", "Please refer to [Doc_2] in the previous conversation."),
    ]


def test_a_third_turn_refers_to_documents_of_all_earlier_turns() -> None:
    session = booster().session("s")
    session.boost("1", docs(1, 2))
    session.boost("2", docs(3, 1))

    third = session.boost("3", docs(3, 2, 1, 4))

    assert sent(third) == [4]
    assert [turn.number for turn in session.turns] == [1, 2, 3]
    assert [list(turn.labels) for turn in session.turns] == [
        ["[Doc_1]", "[Doc_2]"],
        ["[Doc_3]"],
        ["[Doc_4]"],
    ]


def test_a_later_turn_keeps_the_relevance_order() -> None:
    boost = booster().boost
    boost("other", docs(7, 8, 9))
    boost("first", docs(1), session="s")

    second = boost("second", docs(9, 8, 7), session="s")

    assert sent(second) == [9, 8, 7]
    assert second.hints == ()


def test_documents_of_a_later_turn_are_no_prefix_for_others() -> None:
    boost = booster().boost
    boost("first", docs(1, 2), session="s")
    boost("second", docs(3, 4), session="s")

    assert boost("other", docs(4, 3, 2, 1)).predicted_cached_tokens == 200


def test_a_later_turn_lengthens_its_node_and_marks_it_multi_turn() -> None:
    b = booster()
    first = b.boost("first", docs(1, 2), session="s")
    assert not traverse(b.index, first.search_path).is_multi_turn

    second = b.boost("second", docs(3), session="s")

    node = traverse(b.index, second.search_path)
    assert second.search_path == first.search_path
    assert node.is_multi_turn
    assert (node.num_tokens, node.generated_tokens) == (400, 200)
    assert second.predicted_cached_tokens == 200
    assert b.boost("third", docs(4), session="s").predicted_cached_tokens == 400
    check_index(b.index)


def test_a_conversation_that_was_evicted_is_computed_again() -> None:
    b = booster()
    b.boost("first", docs(1, 2), session="s")
    b.boost("second", docs(3), session="s")
    b.index.clear()

    third = b.boost("third", docs(4), session="s")

    assert third.predicted_cached_tokens == 0
    assert b.index.num_tokens == 200 + 200 + 200
    assert b.boost("fourth", docs(), session="s").predicted_cached_tokens == 600


def test_conversations_do_not_see_each_other() -> None:
    boost = booster().boost
    boost("q", docs(1, 2), session="a")

    assert sent(boost("q", docs(1, 2), session="b")) == [1, 2]
    assert sent(boost("q", docs(2, 1))) == [1, 2]


def test_the_same_document_twice_is_sent_once() -> None:
    context = booster().boost("q", docs(1, 2, 1, 1, 3, 2))

    assert sent(context) == [1, 2, 3]
    assert context.positions == (0, 1, 0, 0, 2, 1)
    assert context.hints == ()


def test_without_de_duplication_everything_is_sent_as_often_as_it_is_retrieved() -> None:
    b = booster(dedup={"enabled": False})
    b.boost("other", docs(2, 1))

    first = b.boost("q", docs(1, 2, 1), session="s")
    second = b.boost("q", docs(1, 3), session="s")

    assert sorted(map(str, sent(first))) == ["1", "1", "2"]
    assert sorted(first.positions) == [0, 1, 2]
    assert sent(second) == [1, 3]
    check_index(b.index)


def test_without_location_hints_documents_of_earlier_turns_are_sent_again() -> None:
    b = booster(hints={"location": False})
    b.boost("q", docs(1, 2), session="s")

    assert sent(b.boost("q", docs(2, 3), session="s")) == [2, 3]


def test_without_order_hints_documents_are_still_reordered() -> None:
    b = booster(hints={"order": False})
    b.boost("q", docs(1, 2))

    context = b.boost("q", docs(2, 1))

    assert (sent(context), context.hints) == ([1, 2], ())


def test_without_ordering_the_relevance_order_stays_and_hits_are_still_predicted() -> None:
    b = booster(ordering={"enabled": False})
    b.boost("q", docs(1, 2))

    assert b.boost("q", docs(2, 1)).predicted_cached_tokens == 0
    context = b.boost("q", docs(1, 3))
    assert (sent(context), context.predicted_cached_tokens) == ([1, 3], 100)


def test_too_small_a_saving_leaves_the_relevance_order() -> None:
    b = booster(ordering={"min_saved_tokens": 150})
    b.boost("q", docs(1, 2, 3))

    assert sent(b.boost("q", docs(9, 1))) == [9, 1]
    assert sent(b.boost("q", docs(8, 1, 2))) == [1, 2, 8]


def test_the_most_relevant_documents_can_be_kept_next_to_the_question() -> None:
    b = booster(ordering={"keep_last": 1})
    b.boost("q", docs(9, 1, 2))

    context = b.boost("q", docs(8, 2, 1))

    assert sent(context) == [1, 2, 8]
    assert context.hints[0].labels == ("[Doc_8]", "[Doc_2]", "[Doc_1]")


def test_a_popular_tail_comes_first_behind_the_prefix() -> None:
    b = booster(ordering={"tail": "popularity"})
    for i in range(5):
        b.boost("q", docs(5, 100 + i))

    assert sent(b.boost("q", docs(200, 201, 5))) == [5, 200, 201]


def test_one_id_with_two_texts_is_two_documents_with_two_labels() -> None:
    old, new = Document("old text", id=7), Document("new text", id=7)

    context = booster().boost("q", [old, new])

    assert context.documents == (old, new)
    assert context.labels == ("[Doc_7]", f"[Doc_7~{new.key[:4]}]")


def test_a_changed_document_gets_a_label_of_its_own_in_its_conversation() -> None:
    old, new = Document("old text", id=7), Document("new text", id=7)
    session = booster().session("s")
    session.boost("q", [old])

    second = session.boost("q", [new])
    third = session.boost("q", [new, old])

    assert second.labels == (f"[Doc_7~{new.key[:4]}]",)
    assert [hint.labels for hint in third.hints] == [second.labels, ("[Doc_7]",)]


def test_a_label_depends_on_the_leading_documents_only() -> None:
    old, new = Document("old text", id=7), Document("new text", id=7)
    boost = booster().boost
    alone = boost("q", [new, *docs(1)])

    both = boost("q", [old, new, *docs(1)])

    assert both.documents == (new, docs(1)[0], old)
    assert both.labels[:2] == alone.labels
    assert both.render().startswith(alone.render().removesuffix("q"))


def test_only_documents_of_the_given_history_are_referred_to() -> None:
    one, two, three = docs(1, 2, 3)
    b = booster()
    b.boost("q", [one, two], session="s")

    context = b.boost("q", [two, one, three], session="s", history={one.key})

    assert sent(context) == [2, 3]
    assert [hint.labels for hint in context.hints] == [("[Doc_1]",)]


def test_an_empty_history_starts_over_with_the_same_labels() -> None:
    b = booster()
    b.boost("other", docs(3, 1))
    b.boost("q", docs(1, 2), session="s")

    again = b.boost("q", docs(1, 2, 3), session="s", history=())

    assert sent(again) == [1, 2, 3]
    assert again.labels == ("[Doc_1]", "[Doc_2]", "[Doc_3]")
    assert again.predicted_cached_tokens == 200


def test_a_history_that_is_not_remembered_is_not_referred_to() -> None:
    one, two = docs(1, 2)
    b = booster()

    context = b.boost("q", [one, two], session="unknown", history=[one.key])

    assert sent(context) == [1, 2]
    assert (context.search_path, b.index.num_nodes) == ((), 0)


def test_a_request_that_failed_is_taken_back() -> None:
    session = booster().session("s")
    session.boost("first", docs(1, 2))
    failed = session.boost("second", docs(3))
    session.boost("third", docs(3, 4))

    session.rollback(failed)

    assert [turn.number for turn in session.turns] == [1]
    assert sent(session.boost("again", docs(3, 2))) == [3]


def test_taking_back_the_first_turn_makes_the_next_one_first() -> None:
    b = booster()
    session = b.session("s")
    b.boost("other", docs(2, 1))

    session.rollback(session.boost("first", docs(1, 2)))

    assert sent(session.boost("again", docs(1, 2))) == [2, 1]


def test_taking_back_a_context_without_a_session_does_nothing() -> None:
    b = booster()

    b.rollback(b.boost("q", docs(1)))

    assert len(b.sessions) == 0


def test_a_forgotten_conversation_starts_again() -> None:
    session = booster().session("s")
    session.boost("q", docs(1))

    session.forget()

    assert session.turns == ()
    assert sent(session.boost("q", docs(1))) == [1]


def test_an_expired_conversation_starts_again() -> None:
    now = [0.0]
    b = ragboost.Booster(sessions=MemorySessions(ttl_s=10, clock=lambda: now[0]))
    b.boost("q", docs(1), session="s")
    now[0] = 11.0

    assert sent(b.boost("q", docs(1), session="s")) == [1]


def test_no_documents_make_a_context_of_the_question_alone() -> None:
    b = booster()

    context = b.boost("Who?", [])

    assert (context.documents, context.positions, context.hints) == ((), (), ())
    assert context.render() == "Who?"
    assert b.index.num_nodes == 0


def test_a_turn_without_new_documents_is_a_turn() -> None:
    session = booster().session("s")
    session.boost("1", docs(1))

    assert sent(session.boost("2", docs(1))) == []
    assert sent(session.boost("3", [])) == []
    assert len(session.turns) == 3


def test_a_conversation_may_begin_without_documents() -> None:
    session = booster().session("s")
    session.boost("1", [])

    assert sent(session.boost("2", docs(2, 1))) == [2, 1]
    assert sent(session.boost("3", docs(1, 3))) == [3]


def test_one_document_is_sent_without_hints() -> None:
    context = booster().boost("q", ["just a text"])

    assert (context.positions, context.hints) == ((0,), ())


def test_a_bad_document_changes_nothing() -> None:
    b = booster()

    with pytest.raises(InvalidDocumentError) as caught:
        b.boost("q", [{"text": "fine"}, {"text": 5}], session="s")

    assert caught.value.param == "documents[1].text"
    assert (b.index.num_nodes, len(b.sessions)) == (0, 0)


@pytest.mark.parametrize("session_id", ["", None, 5])
def test_a_session_needs_a_name(session_id: object) -> None:
    with pytest.raises(RequestError, match="session must be a non-empty string"):
        booster().session(session_id)  # type: ignore[arg-type]


def test_lone_surrogates_go_through() -> None:
    context = booster().boost("\ud800?", [{"text": "bad \udfff text", "id": "\ud801"}])

    assert "bad \udfff text" in context.render()


def test_ten_thousand_documents_in_one_request() -> None:
    b = ragboost.Booster()
    b.boost("q", [f"text {i}" for i in range(0, 10_000, 7)])

    context = b.boost("q", [f"text {i}" for i in range(10_000)])

    assert len(context.documents) == 10_000
    assert context.predicted_cached_tokens > 1000
    assert context.hints[0].text.count("[Doc_") == 50


def test_reported_usage_is_added_up_beside_the_prediction() -> None:
    b = booster()
    b.boost("q", docs(1, 2))
    context = b.boost("q", docs(1, 2))

    b.report_usage(context, prompt_tokens=230, cached_tokens=192)
    b.report_usage(context, prompt_tokens=230, cached_tokens=0)

    assert b.usage == UsageTotals(
        requests=2, prompt_tokens=460, cached_tokens=192, predicted_cached_tokens=400
    )


@pytest.mark.parametrize(("prompt", "cached"), [(10, 11), (10, -1), (-1, -1)])
def test_impossible_usage_is_refused(prompt: int, cached: int) -> None:
    b = booster()
    context = b.boost("q", docs(1))

    with pytest.raises(RequestError, match="cached_tokens must be between 0 and prompt_tokens"):
        b.report_usage(context, prompt_tokens=prompt, cached_tokens=cached)

    assert b.usage == UsageTotals()


def test_threads_share_a_booster() -> None:
    b = booster(index={"capacity_tokens": 3000})

    def talk(user: int) -> None:
        session = b.session(f"user {user}")
        for turn in range(20):
            session.boost("q", docs(*range(turn, turn + 4)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(talk, range(8)))

    check_index(b.index)
    for user in range(8):
        turns = b.session(f"user {user}").turns
        assert [label for t in turns for label in t.labels] == [f"[Doc_{i}]" for i in range(23)]


def test_repr_reads_like_the_call() -> None:
    assert repr(ragboost.Booster()) == "Booster(Settings())"
    assert repr(booster(ordering={"keep_last": 2}).session("u")) == (
        "Booster(Settings(ordering=OrderingSettings(keep_last=2))).session('u')"
    )


def test_only_requests_behind_the_same_text_share_a_prefix() -> None:
    booster = ragboost.Booster()
    booster.boost("one?", ["a", "b"], prompt_prefix="x")

    other = booster.boost("two?", ["b", "a"], prompt_prefix="y")
    same = booster.boost("three?", ["b", "a"], prompt_prefix="x")

    assert [document.text for document in other.documents] == ["b", "a"]
    assert other.predicted_cached_tokens == 0
    assert [document.text for document in same.documents] == ["a", "b"]
    assert same.predicted_cached_tokens > 0
