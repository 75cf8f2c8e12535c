"""`scale.faults` finds what was lost, doubled and crossed, and when the hit rate is back."""

from benchmarks.scale.faults import WINDOW, _recovered, check
from ragboost.types import Document
from scripts.cluster_traffic import Talk, Turn, hit_rate, num_moved

TALKS = {
    name: Talk(
        name,
        [
            (
                f"Question {turn} of {name}?",
                [Document("Shared 1."), Document(f"Private to {name}.")],
            )
            for turn in range(2)
        ],
        is_session=False,
    )
    for name in ("talk-0", "talk-1")
}
GOOD = "Shared 1.\nPrivate to talk-0.\nQuestion 0 of talk-0?"
TURN = Turn("talk-0", 0, 0.0)


def test_a_prompt_with_every_document_once_is_right() -> None:
    assert check(TALKS, [TURN], [GOOD]) == {"lost": 0, "doubled": 0, "crossed": 0}


def test_faults_in_prompts_are_counted_by_turn() -> None:
    assert check(TALKS, [TURN], [])["lost"] == 1
    assert check(TALKS, [Turn("talk-0", 0, 0.0, is_lost=True)], [GOOD])["lost"] == 1
    assert check(TALKS, [TURN], [GOOD.replace("Shared 1.", "")])["lost"] == 1
    assert check(TALKS, [TURN], ["Shared 1.\n" + GOOD])["doubled"] == 1
    assert check(TALKS, [TURN], ["Question 0 of talk-0?\n" + GOOD])["doubled"] == 1
    assert check(TALKS, [TURN], ["Private to talk-1.\n" + GOOD, GOOD])["crossed"] == 1


def test_the_hit_rate_is_back_when_a_window_reaches_it() -> None:
    def turn(at: int, cached: int) -> Turn:
        return Turn("talk-0", at, float(at), prompt_tokens=100, cached_tokens=cached)

    turns = [turn(at, 0 if at < 10 else 80) for at in range(2 * WINDOW)]

    found = _recovered(turns, 0.76, began=0.0)

    assert found == {"recovered_turns": WINDOW + 7, "recovered_s": WINDOW + 6.0}
    assert _recovered(turns, 0.9, began=0.0)["recovered_turns"] is None
    assert hit_rate(turns[10:20]) == 0.8


def test_a_conversation_moved_if_two_replicas_have_served_it() -> None:
    turns = [
        Turn("a", 0, 0.0, replica="x"),
        Turn("a", 1, 0.0, replica="y"),
        Turn("b", 0, 0.0, replica="x"),
        Turn("b", 1, 0.0, replica="x"),
    ]
    assert num_moved(turns) == 1
