from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.ordering import release_order

PATHS = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=20)


@settings(max_examples=200, deadline=None)
@given(PATHS)
def test_groups_stay_together_longest_first_in_the_order_of_their_first_request(
    paths: list[tuple[int, ...]],
) -> None:
    order = release_order(paths)

    assert sorted(order) == list(range(len(paths)))
    groups = [
        list(members)
        for _, members in groupby(order, key=lambda i: paths[i][0] if paths[i] else (i,))
    ]
    starts = [paths[members[0]][:1] or (members[0], "alone") for members in groups]
    assert len(set(starts)) == len(starts)
    assert [min(members) for members in groups] == sorted(min(members) for members in groups)
    for members in groups:
        assert members == sorted(members, key=lambda i: (-len(paths[i]), paths[i], i))


def test_longer_common_parts_are_adjacent() -> None:
    paths = [(0, 1, 0), (0, 2, 0), (0, 1, 1), (0, 2, 0), (0,)]

    assert release_order(paths) == [0, 2, 1, 3, 4]


def test_requests_that_share_nothing_keep_their_places() -> None:
    assert release_order([(), (1,), (), (0,), (1, 0)]) == [0, 4, 1, 2, 3]
    assert release_order([]) == []
