"""The sentence says what was measured, and names a setting that helps."""

from collections.abc import Mapping

from ragboost.evaluation.arms import ARMS
from ragboost.evaluation.results import OrderEvaluation, compare
from ragboost.evaluation.run import CostEstimate

BY_NAME = {arm.name: arm for arm in ARMS}


def evaluation(right: Mapping[str, int], *, total: int = 200) -> OrderEvaluation:
    """An evaluation in which each arm answers its first questions right."""
    names = [f"q{n}" for n in range(total)]
    return compare(
        [BY_NAME[name] for name in right],
        {
            arm: {name: {"f1": float(at < count)} for at, name in enumerate(names)}
            for arm, count in right.items()
        },
        groups={name: name for name in names},
        facts=dict.fromkeys(right, (5, 100, 0.25)),
        metrics=["f1"],
        metric="f1",
    )


def test_no_loss_is_bounded() -> None:
    said = evaluation({"retriever": 150, "boosted": 150}).conclusion()

    assert said == "boosted: no loss larger than 1.8 points at 95 % (f1, 200 questions)."


def test_nothing_is_claimed_where_no_answer_is_right() -> None:
    said = evaluation({"retriever": 0, "boosted": 0}).conclusion()

    assert said == (
        "No answer was right in the retriever's order (f1, 200 questions): nothing can be lost, "
        "and nothing can be said. See the answers; a model that reasons may need more --max-tokens."
    )


def test_a_loss_names_the_best_setting_that_still_boosts() -> None:
    arms = {"retriever": 150, "boosted": 100, "keep-last-1": 120, "keep-last-2": 150}

    said = evaluation(arms).conclusion()

    assert said.startswith("boosted lost 25.0 points (")
    assert "set ordering.keep_last = 2, which lost 0.0" in said.replace("-0.0", "0.0")


def test_a_loss_that_no_setting_avoids_advises_to_switch_ordering_off() -> None:
    said = evaluation({"retriever": 150, "boosted": 100, "keep-last-2": 110}).conclusion()

    assert "set ordering.enabled = false" in said
    assert said.endswith("or try more settings with --arm all.")


def test_only_questions_that_all_arms_answered_are_compared() -> None:
    names = ["a", "b", "c"]
    scores = {
        "retriever": {name: {"f1": 1.0} for name in names},
        "boosted": {"a": {"f1": 1.0}, "c": {"f1": 0.0}},
    }

    result = compare(
        [BY_NAME["retriever"], BY_NAME["boosted"]],
        scores,
        groups={name: name for name in names},
        facts=dict.fromkeys(scores, (0, 0, 0.0)),
        metrics=["f1"],
        metric="f1",
    )

    assert (result.num_questions, result.num_compared) == (3, 2)
    assert [arm.num_failed for arm in result.arms] == [0, 1]
    assert result.arms[1].scores["f1"] == 0.5
    assert result.as_json()["arms"]["boosted"]["scores"]["f1"]["difference"] == -0.5


def test_without_a_common_question_nothing_is_claimed() -> None:
    assert "nothing can be said" in evaluation({"retriever": 0, "boosted": 0}, total=0).conclusion()
    assert "--arm boosted" in evaluation({"retriever": 3, "shuffled": 3}).conclusion()


def test_the_cost_is_that_of_what_is_missing() -> None:
    cost = CostEstimate(10, 4, 2_000_000, 600)

    assert cost.num_missing == 6
    assert "6 requests of 10 distinct prompts, 4 answered before" in cost.sentence()
