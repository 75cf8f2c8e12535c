import json
from collections.abc import Iterator
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster import MemorySessions, SessionState, Turn


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def turn(number: int, *keys: str, is_leading: bool = False) -> Turn:
    labels = tuple(f"[{key}]" for key in keys)
    return Turn(number, is_leading, 10 * len(keys) + 1, keys, labels, (10,) * len(keys))


def leading_keys(session: SessionState) -> tuple[str, ...]:
    found = session.leading_turn()
    return found.keys if found is not None else ()


def state(*turns: Turn) -> SessionState:
    session = SessionState("s")
    for entry in turns:
        session.add(entry, max_documents=100)
    return session


def test_labels_are_those_of_all_turns() -> None:
    assert state(turn(1, "a", "b"), turn(2, "c")).labels() == {"a": "[a]", "b": "[b]", "c": "[c]"}


def test_the_front_is_the_last_leading_turn_and_the_rest_its_tail() -> None:
    session = state(turn(1, "a", is_leading=True), turn(2, "b"), turn(3, "c", "d"))
    assert leading_keys(session) == ("a",)
    assert session.later_tokens() == 11 + 21

    session.add(turn(4, "e", is_leading=True), max_documents=100)
    assert leading_keys(session) == ("e",)
    assert session.later_tokens() == 0


def test_rollback_takes_back_a_turn_and_all_later_ones_but_no_number() -> None:
    session = state(turn(1, "a"), turn(2, "b"), turn(3, "c"))

    session.rollback(2)

    assert [t.number for t in session.turns] == [1]
    assert session.next_turn == 4


def test_the_oldest_turns_are_forgotten_beyond_the_bound_but_never_the_new_one() -> None:
    session = state(turn(1, "a", "b"), turn(2, "c"))
    assert not session.has_forgotten

    session.add(turn(3, "d"), max_documents=3)
    assert [t.number for t in session.turns] == [2, 3]
    assert session.has_forgotten

    session.add(turn(4, "e", "f", "g", "h"), max_documents=3)
    assert [t.number for t in session.turns] == [4]


def test_the_state_is_plain_data() -> None:
    session = state(turn(1, "a", is_leading=True), turn(2, "b"))

    data = json.loads(json.dumps([session.id, session.turns, session.next_turn]))
    turns = [Turn(*numbers[:3], *map(tuple, numbers[3:])) for numbers in data[1]]

    assert SessionState(data[0], turns, data[2]) == session


def test_the_least_recently_used_session_is_dropped_first() -> None:
    store = MemorySessions(max_sessions=2)
    store.put(SessionState("a"))
    store.put(SessionState("b"))
    store.get("a")

    store.put(SessionState("c"))

    assert [store.get(name) is not None for name in "abc"] == [True, False, True]


def test_a_session_expires_after_its_last_use() -> None:
    clock = Clock()
    store = MemorySessions(ttl_s=10, clock=clock)
    store.put(SessionState("a"))
    store.put(SessionState("b"))
    clock.now = 8
    store.get("a")
    clock.now = 15

    assert store.get("a") is not None
    assert store.get("b") is None
    assert len(store) == 1


def test_a_removed_session_is_unknown() -> None:
    store = MemorySessions()
    store.put(SessionState("a"))

    assert store.remove("a")
    assert not store.remove("a")
    assert store.get("a") is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["get", "put", "remove", "wait"]), st.sampled_from("abcdef")),
        max_size=60,
    )
)
def test_the_store_is_bounded_and_returns_what_was_put(steps: list[tuple[str, str]]) -> None:
    clock = Clock()
    store = MemorySessions(max_sessions=3, ttl_s=5, clock=clock)
    used: dict[str, float] = {}  # by last use, oldest first
    for action, name in steps:
        if action == "wait":
            clock.now += 2
            continue
        if action != "remove":
            used = {n: t for n, t in used.items() if t >= clock.now - 5 or action == "put"}
        if action == "put":
            store.put(SessionState(name))
            used.pop(name, None)
            used[name] = clock.now
            used = dict(list(used.items())[-3:])
        elif action == "get":
            found = store.get(name)
            assert (found is not None and found.id == name) == (name in used)
            if name in used:
                used.pop(name)
                used[name] = clock.now
        else:
            assert store.remove(name) == (used.pop(name, None) is not None)
        assert len(store) <= 3


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 9)), max_size=30))
def test_what_is_kept_of_the_turns_is_what_they_say(steps: list[tuple[bool, int, int]]) -> None:
    state = SessionState("a")
    for is_leading, number, rollback in steps:
        keys, labels = (tuple(f"{kind}{number}{i}" for i in range(number)) for kind in "kl")
        documents = keys, labels, (number,) * number
        state.add(Turn(state.next_turn, is_leading, number, *documents), max_documents=12)
        if rollback == 0:
            state.rollback(state.next_turn - 2)
        pairs = [zip(turn.keys, turn.labels, strict=True) for turn in state.turns]
        known = dict(chain.from_iterable(pairs))
        leading = [at for at, turn in enumerate(state.turns) if turn.is_leading]
        later = state.turns[leading[-1] + 1 :] if leading else state.turns
        assert state.labels() == known
        assert state.owners() == {label: key for key, label in known.items()}
        assert state.leading_turn() == (state.turns[leading[-1]] if leading else None)
        assert state.later_tokens() == sum(turn.num_tokens for turn in later)
        assert sum(len(turn.keys) for turn in state.turns) <= 12


class CountedReads(tuple[str, ...]):
    num_reads = 0

    def __iter__(self) -> Iterator[str]:
        CountedReads.num_reads += 1
        return super().__iter__()


def test_a_turn_is_read_once_however_many_follow() -> None:
    state = SessionState("a")
    first = Turn(1, is_leading=True, num_tokens=1, keys=CountedReads("k"), labels=("l",))
    state.add(first, max_documents=1_000)
    for number in range(2, 100):
        state.add(Turn(number, is_leading=False, num_tokens=1), max_documents=1_000)
        assert state.labels() == {"k": "l"}

    assert CountedReads.num_reads == 2, "once each for labels and owners"
    assert state.later_tokens() == 98
