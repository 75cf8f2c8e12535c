"""Compare the arms by their scores, say in one sentence what boosting costs, and show a table."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from ragboost.evaluation.arms import BASELINE, BOOSTED, EVERY_ARM, EvalArm
from ragboost.evaluation.bootstrap import MeanInterval, paired_difference

Scores = Mapping[str, Mapping[str, float]]
"""By question, the score by metric."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    arm: EvalArm
    num_changed: int  # questions whose prompt differs from the baseline's
    num_failed: int  # questions without an answer
    prompt_tokens: int  # estimated, of all its prompts
    predicted_hit_rate: float  # share of them that the Booster predicts to be cached
    scores: Mapping[str, float]  # mean by metric, over the questions that all arms have answered
    differences: Mapping[str, MeanInterval]  # to the baseline, by metric


@dataclass(frozen=True, slots=True)
class OrderEvaluation:
    arms: tuple[ArmResult, ...]  # the baseline first
    metric: str  # the one of the sentence
    num_questions: int
    num_compared: int  # answered in every arm

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "questions": self.num_questions,
            "compared": self.num_compared,
            "arms": {result.arm.name: _as_json(result) for result in self.arms},
            "conclusion": self.conclusion(),
        }

    def conclusion(self) -> str:
        results = {result.arm.name: result for result in self.arms}
        if not self.num_compared:
            return "No question was answered in every arm: nothing can be said."
        if BOOSTED not in results:
            return f"Ask with --arm {BOOSTED} to learn what your settings cost."
        found = results[BOOSTED].differences[self.metric]
        over = f"{self.metric}, {self.num_compared:,} questions"
        if not results[BASELINE].scores[self.metric]:
            return (
                f"No answer was right in the retriever's order ({over}): nothing can be lost, and "
                "nothing can be said. See the answers; a model that reasons may need more "
                "--max-tokens."
            )
        if found.high >= 0:
            bound = max(0.0, -100 * found.low)
            return f"boosted: no loss larger than {bound:.1f} points at 95 % ({over})."
        lost = (
            f"boosted lost {-100 * found.mean:.1f} points "
            f"({-100 * found.high:.1f} to {-100 * found.low:.1f} at 95 %; {over})"
        )
        best = self._advised()
        if best is None:
            return f"{lost}; no other arm was asked."
        left = best.differences[self.metric]
        if best.arm.name == BASELINE:
            return f"{lost}: set {best.arm.advice}, or try more settings with --arm {EVERY_ARM}."
        return (
            f"{lost}: set {best.arm.advice}, which {_changed(left.mean)} "
            f"({100 * left.low:+.1f} to {100 * left.high:+.1f})."
        )

    def _advised(self) -> ArmResult | None:
        """Return the best arm that a setting leads to: one that still boosts, if any is better."""
        results = {result.arm.name: result for result in self.arms}
        measured = results[BOOSTED].differences[self.metric].mean
        others = [
            result
            for result in self.arms
            if result.arm.advice
            and result.arm.name != BASELINE
            and result.differences[self.metric].mean > measured
            and result.differences[self.metric].high >= 0
        ]
        if not others:
            return results.get(BASELINE)
        return max(others, key=lambda result: result.differences[self.metric].mean)


def compare(
    arms: Sequence[EvalArm],
    scores: Mapping[str, Scores],
    *,
    groups: Mapping[str, Hashable],
    facts: Mapping[str, tuple[int, int, float]],
    metrics: Sequence[str],
    metric: str,
    seed: int = 0,
) -> OrderEvaluation:
    """Compare arms on the questions that all have answered, by arm, question and metric. `groups`:
    the conversation of each, or itself; `facts`: changed questions, prompt tokens, hit rate."""
    common = [name for name in groups if all(name in scores[arm.name] for arm in arms)]
    members = [groups[name] for name in common]
    base = scores[arms[0].name]
    results = []
    for arm in arms:
        own = scores[arm.name]
        differences, means = {}, {}
        for kind in metrics:
            values = [own[name][kind] for name in common]
            means[kind] = sum(values) / len(values) if values else 0.0
            differences[kind] = paired_difference(
                [base[name][kind] for name in common], values, groups=members, seed=seed
            )
        changed, tokens, rate = facts[arm.name]
        results.append(
            ArmResult(arm, changed, len(groups) - len(own), tokens, rate, means, differences)
        )
    return OrderEvaluation(tuple(results), metric, len(groups), len(common))


def _changed(mean: float) -> str:
    return f"gained {100 * mean:.1f}" if mean > 0 else f"lost {-100 * mean:.1f}"


def _as_json(result: ArmResult) -> dict[str, Any]:
    return {
        "changed": result.num_changed,
        "failed": result.num_failed,
        "prompt_tokens": result.prompt_tokens,
        "predicted_hit_rate": result.predicted_hit_rate,
        "advice": result.arm.advice,
        "scores": {
            name: {
                "mean": mean,
                "difference": result.differences[name].mean,
                "low": result.differences[name].low,
                "high": result.differences[name].high,
            }
            for name, mean in result.scores.items()
        },
    }


def result_table(result: OrderEvaluation) -> Table:
    """Return a row per arm, with the paired difference of the chosen metric in points."""
    compared, total = result.num_compared, result.num_questions
    title = f"{compared:,} of {total:,} questions answered in every arm"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    metrics = list(result.arms[0].scores)
    table.add_column("arm", no_wrap=True)
    table.add_column("changed", justify="right")
    table.add_column("cached", justify="right")
    for metric in metrics:
        table.add_column(metric, justify="right")
    table.add_column(f"Δ {result.metric}", justify="right", no_wrap=True)
    table.add_column("95 %", justify="right", no_wrap=True)
    for at, arm in enumerate(result.arms):
        difference = arm.differences[result.metric]
        table.add_row(
            arm.arm.name,
            f"{arm.num_changed:,}",
            f"{arm.predicted_hit_rate:.1%}",
            *(f"{100 * arm.scores[metric]:.1f}" for metric in metrics),
            "" if at == 0 else f"{100 * difference.mean:+.1f}",
            "" if at == 0 else f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}",
        )
    return table
