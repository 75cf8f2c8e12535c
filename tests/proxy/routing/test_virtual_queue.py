"""The virtual queue: what may overtake whom."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ragboost.proxy.routing.backend_queue import VirtualQueue


def test_without_savings_nobody_may_be_overtaken() -> None:
    queue = VirtualQueue()
    places = [queue.enter("", 1000) for _ in range(5)]
    assert places == sorted(places)
    assert queue.lead(places) == 0
    assert queue.lead(places[1:]) == 1000
    assert queue.lead([]) == math.inf


def test_what_is_saved_may_be_spent() -> None:
    queue = VirtualQueue()
    places = [queue.enter("", 1000) for _ in range(5)]
    queue.leave(places[0])
    queue.sent(100)
    assert queue.lead(places[1:]) == 900


def test_a_place_that_is_given_up_is_no_lead() -> None:
    queue = VirtualQueue()
    places = [queue.enter("", 1000) for _ in range(5)]
    queue.abandon(places[1])
    left = [
        place.moved_up(places[1].span) if place.is_behind(places[1]) else place
        for place in places
        if place is not places[1]
    ]
    assert [place.begin for place in left] == [0, 1000, 2000, 3000]
    assert queue.enter("", 1000).begin == 4000
    assert queue.lead(left[1:]) == 1000


def test_a_lead_ends_with_the_queue() -> None:
    queue = VirtualQueue()
    for place in [queue.enter("", 1000) for _ in range(5)]:
        queue.leave(place)
        queue.sent(10)
    assert len(queue) == 0
    assert queue.lead([queue.enter("", 1000)]) == 0


def test_a_team_with_one_request_is_not_behind_all_of_another_team() -> None:
    queue = VirtualQueue()
    crowd = [queue.enter("many", 1000) for _ in range(10)]
    single = queue.enter("one", 1000)
    assert sorted([*crowd, single]).index(single) == 1


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=30))
def test_following_the_lead_begins_nobody_later_than_allowed(
    requests: list[tuple[int, int]],
) -> None:
    queue = VirtualQueue()
    waiting = {queue.enter("", tokens): min(actual, tokens) for tokens, actual in requests}
    sent = 0
    while waiting:
        places = sorted(waiting)
        lead = queue.lead(places)
        # The last one overtakes all others whenever it may.
        chosen = places[-1] if places[-1].tokens <= lead else places[0]
        assert sent <= chosen.begin
        queue.leave(chosen)
        queue.sent(waiting[chosen])
        sent += waiting.pop(chosen)
