from typing import Any

import ragboost
from ragboost.booster.context import Plan
from ragboost.config import Settings
from ragboost.types import Document, Request


def booster(**sections: Any) -> ragboost.Booster:
    return ragboost.Booster(Settings.model_validate(sections), count_tokens=lambda _: 100)


def request(*ids: int, session: str | None = None) -> Request:
    documents = tuple(Document(f"text of {i}", id=i) for i in ids)
    return Request(f"question about {ids}", documents, session=session)


def sent(plan: Plan) -> list[list[object]]:
    return [[document.id for document in context.documents] for context in plan.contexts]


def test_a_batch_shares_prefixes() -> None:
    requests = [request(2, 1, 3), request(7, 8), request(2, 6, 1), request(8, 9, 7)]

    plan = booster().boost_batch(requests)

    assert sorted(plan.order) == [0, 1, 2, 3]
    groups = [set(map(frozenset, [p[:2]])) for p in sent(plan)]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert [c.predicted_cached_tokens for c in plan.contexts] == [0, 200, 0, 200]


def test_a_context_belongs_to_the_request_that_order_names() -> None:
    requests = [request(2, 1, 3), request(7, 8), request(2, 6, 1)]

    plan = booster().boost_batch(requests)

    for context, i in zip(plan.contexts, plan.order, strict=True):
        assert context.query == requests[i].query
        assert context.retrieved == requests[i].documents


def test_turns_of_a_conversation_keep_their_order_and_follow_each_other() -> None:
    requests = [
        request(1, 2, 3, session="a"),
        request(1, 2, 4),
        request(3, 5, session="a"),
        request(5, 6, session="a"),
        request(1, 2, session="b"),
    ]

    plan = booster().boost_batch(requests)

    place = plan.order.index(0)
    assert plan.order[place : place + 3] == (0, 2, 3)
    assert sent(plan)[place + 1 : place + 3] == [[5], [6]]
    assert [context.turn for context in plan.contexts if context.session == "a"] == [1, 2, 3]


def test_a_continued_conversation_comes_first() -> None:
    b = booster()
    b.boost("first", ["x"], session="a")

    plan = b.boost_batch([request(1, 2), request(3, session="a"), request(2, 1)])

    assert plan.order[0] == 1
    assert plan.contexts[0].turn == 2


def test_duplicates_are_sent_once() -> None:
    plan = booster().boost_batch([request(1, 2, 1), request(2, 1)])

    assert [sorted(map(str, ids)) for ids in sent(plan)] == [["1", "2"], ["1", "2"]]


def test_the_most_relevant_documents_stay_last_in_a_batch() -> None:
    requests = [request(9, 1, 2), request(8, 2, 1), request(1, 9, 2)]

    plan = booster(ordering={"keep_last": 1}).boost_batch(requests)

    for context in plan.contexts:
        assert context.documents[-1] == context.retrieved[0]


def test_keeping_more_documents_than_there_are_reverses_them() -> None:
    plan = booster(ordering={"keep_last": 5}).boost_batch([request(1, 2), request()])

    assert sorted(sent(plan)) == [[], [2, 1]]


def test_without_ordering_a_batch_stays_as_it_is() -> None:
    requests = [request(2, 1), request(7), request(1, 2)]

    plan = booster(ordering={"enabled": False}).boost_batch(requests)

    assert plan.order == (0, 1, 2)
    assert sent(plan) == [[2, 1], [7], [1, 2]]


def test_a_batch_of_nothing_is_a_plan_of_nothing() -> None:
    assert booster().boost_batch([]) == Plan((), ())


def test_requests_without_documents_are_in_the_plan() -> None:
    plan = booster().boost_batch([request(), request(1), request()])

    assert sorted(plan.order) == [0, 1, 2]
    assert sorted(sent(plan)) == [[], [], [1]]
