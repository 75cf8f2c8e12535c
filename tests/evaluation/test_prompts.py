"""Each arm sends what the product would send with its settings."""

from collections import Counter

import pytest

from ragboost.booster import Booster
from ragboost.config import Settings, load_settings
from ragboost.errors import RequestError
from ragboost.evaluation.arms import ARMS, ArmPrompt, ArmRenderer, choose_arms
from ragboost.evaluation.loading import EvalQuestion
from ragboost.types import Document

DOCUMENTS = {name: Document(f"text of {name}", id=name) for name in "ABCDEF"}


def ask(number: int, names: str, *, conversation: str | None = None) -> EvalQuestion:
    documents = tuple(DOCUMENTS[name] for name in names)
    return EvalQuestion(f"q{number}", f"question {number}?", documents, ("right",), conversation)


def rendered(name: str, *questions: EvalQuestion, system: str = "") -> tuple[ArmPrompt, ...]:
    arm = next(arm for arm in ARMS if arm.name == name)
    renderer = ArmRenderer(arm, load_settings(arm.changes), system=system, seed=1)
    return tuple(map(renderer.render, questions))


def order(prompt: ArmPrompt) -> str:
    """The documents of the last message, in prompt order."""
    lines = prompt.messages[-1][1].split("\n")
    return "".join(line[-1] for line in lines if line.startswith("text of"))


SINGLE = (ask(1, "ABCD"), ask(2, "DCBA"), ask(3, "CABE"))
TURNS = (ask(1, "ABC", conversation="c"), ask(2, "DBA", conversation="c"))


def test_the_baseline_keeps_the_retrievers_order_and_sends_everything_again() -> None:
    assert [order(one) for one in rendered("retriever", *SINGLE)] == ["ABCD", "DCBA", "CABE"]
    first, second = rendered("retriever", *TURNS)
    assert (order(first), order(second)) == ("ABC", "DBA")
    assert "Please" not in second.messages[-1][1]


def test_the_boosted_arm_is_what_one_booster_sends_that_has_seen_the_questions_before() -> None:
    booster = Booster(Settings())
    wanted = [booster.boost(one.text, one.documents).render() for one in SINGLE]

    prompts = rendered("boosted", *SINGLE)

    assert [one.messages[-1][1] for one in prompts] == wanted
    assert [order(one) for one in prompts] == ["ABCD", "ABCD", "ABCE"]
    assert prompts[0].predicted_cached_tokens == 0 < prompts[1].predicted_cached_tokens


def test_hints_are_left_out_or_stand_where_the_arm_says() -> None:
    def asked(name: str) -> str:
        return rendered(name, *SINGLE)[1].messages[-1][1]

    assert "by relevance" not in asked("boosted-no-hints")
    assert asked("boosted").endswith("question 2?")
    assert order(rendered("boosted-no-hints", *SINGLE)[1]) == "ABCD"


@pytest.mark.parametrize(("count", "wanted"), [(0, "ABCD"), (1, "ABCD"), (2, "ABCD"), (5, "ABCD")])
def test_the_most_relevant_documents_stay_last(count: int, wanted: str) -> None:
    first, second, _ = rendered(f"keep-last-{count}", *SINGLE)
    kept = order(second)[len(wanted) - min(count, 4) :]

    assert kept == "DCBA"[: min(count, 4)][::-1]
    assert Counter(order(first)) == Counter("ABCD")


def test_shuffled_arms_send_the_same_documents_with_and_without_hints() -> None:
    for name in ("shuffled", "shuffled-hints"):
        prompts = rendered(name, *SINGLE)
        assert [Counter(order(one)) for one in prompts] == [
            Counter(names) for names in ("ABCD", "DCBA", "CABE")
        ]
        assert [order(one) for one in prompts] != ["ABCD", "DCBA", "CABE"]
        assert prompts == rendered(name, *SINGLE)
    hinted = rendered("shuffled-hints", *SINGLE, system="Be brief.")
    assert any("[Doc_D] >> [Doc_C] >> [Doc_B] >> [Doc_A]" in p.messages[-1][1] for p in hinted)
    assert not any("by relevance" in p.messages[-1][1] for p in rendered("shuffled", *SINGLE))


def test_the_reversed_arm_sends_the_least_relevant_document_first() -> None:
    assert [order(one) for one in rendered("reversed", *SINGLE)] == ["DCBA", "ABCD", "EBAC"]
    assert not any("by relevance" in p.messages[-1][1] for p in rendered("reversed", *SINGLE))


def test_later_turns_refer_to_documents_or_not_at_all() -> None:
    def last(name: str) -> str:
        return rendered(name, *TURNS)[1].messages[-1][1]

    one, two = (f"Please refer to [Doc_{name}] in the previous conversation." for name in "BA")
    assert last("dedup") == f"[Doc_D]\ntext of D\n\n{one}\n{two}\n\nquestion 2?"
    assert last("dedup-no-hints") == "[Doc_D]\ntext of D\n\nquestion 2?"


def test_a_turn_carries_the_earlier_ones_as_they_were_sent_with_the_right_answers() -> None:
    first, second = rendered("boosted", *TURNS, system="Be brief.")

    assert first.messages[0] == ("system", "Be brief.")
    assert second.messages[:-1] == (*first.messages, ("assistant", "right"))
    assert second.prompt_tokens > first.prompt_tokens


def test_three_arms_are_asked_by_default() -> None:
    names = [arm.name for arm in choose_arms([], has_conversations=True)]
    assert names == ["retriever", "boosted", "boosted-no-hints"]


def test_arms_that_only_differ_in_later_turns_are_left_out_without_conversations() -> None:
    names = [arm.name for arm in choose_arms(["all"], has_conversations=False)]
    assert names[:2] == ["retriever", "boosted"]
    assert "dedup" not in names
    assert len(choose_arms(["all"], has_conversations=True)) == len(ARMS)
    chosen = choose_arms(["keep-last-2"], has_conversations=False)
    assert [arm.name for arm in chosen] == ["retriever", "keep-last-2"]
    with pytest.raises(RequestError, match=r"--arm must be one of all, retriever, .*got 'best'"):
        choose_arms(["best"], has_conversations=False)
