from hypothesis import given
from hypothesis import strategies as st

from ragboost.ordering import group_turns


def test_requests_are_grouped_by_conversation() -> None:
    turns = group_turns([None, "a", "b", "a", None, "old", "a"], {"old"})

    assert turns.leading == (0, 1, 2, 4)
    assert turns.later == {1: (3, 6)}
    assert turns.continued == (5,)


def test_later_turns_follow_their_first_turn() -> None:
    turns = group_turns([None, "a", "b", "a", None, "old", "a"], {"old"})

    assert turns.release_order([2, 1, 3, 0]) == (5, 2, 1, 3, 6, 4, 0)


@given(
    st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=12),
    st.sets(st.sampled_from("abc")),
    st.randoms(use_true_random=False),
)
def test_every_request_is_released_once_and_turns_in_order(
    sessions: list[str | None], continued: set[str], shuffler: object
) -> None:
    turns = group_turns(sessions, continued)
    leading = list(range(len(turns.leading)))
    shuffler.shuffle(leading)  # type: ignore[attr-defined]

    order = turns.release_order(leading)

    assert sorted(order) == list(range(len(sessions)))
    for session in set(sessions) - {None}:
        own = [i for i in order if sessions[i] == session]
        assert own == sorted(own)
