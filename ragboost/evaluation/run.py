"""Run an evaluation: render the arms, ask for the answers, score and compare them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ragboost.config import Settings
from ragboost.evaluation.answers import AnswerFile, answer_key, ask_all
from ragboost.evaluation.arms import ArmPrompt, ArmRenderer, EvalArm
from ragboost.evaluation.endpoint import ChatEndpoint
from ragboost.evaluation.loading import EvalQuestion
from ragboost.evaluation.results import OrderEvaluation, compare
from ragboost.util.text_scores import contains, exact_match, word_f1

METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "em": exact_match,
    "f1": word_f1,
    "contains": contains,
}


StageProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Requests and tokens that a run takes, told before its first request."""

    num_prompts: int  # distinct prompts of all arms
    num_known: int  # those answered by earlier runs
    prompt_tokens: int  # estimated, of the others
    max_completion_tokens: int  # at most, of the others

    @property
    def num_missing(self) -> int:
        return self.num_prompts - self.num_known

    def sentence(self) -> str:
        earlier = f", {self.num_known:,} answered before" if self.num_known else ""
        return (
            f"{self.num_missing:,} requests of {self.num_prompts:,} distinct prompts{earlier}: "
            f"about {self.prompt_tokens:,} prompt tokens, at most {self.max_completion_tokens:,} "
            "new ones"
        )


class AskedPrompt(NamedTuple):
    prompt: ArmPrompt
    key: str


class OrderRun:
    """One evaluation of questions over arms."""

    def __init__(
        self,
        questions: Sequence[EvalQuestion],
        arms: Sequence[EvalArm],
        settings: Mapping[str, Settings],
        *,
        endpoint: ChatEndpoint,
        answers: AnswerFile,
        system: str = "",
        seed: int = 0,
    ) -> None:
        self._questions = questions
        self._arms = arms
        self._settings = settings
        self._endpoint = endpoint
        self._answers = answers
        self._system = system
        self._seed = seed
        self._asked: dict[str, tuple[AskedPrompt, ...]] = {}
        self.failures: dict[str, str] = {}

    def render(self, on_progress: StageProgress) -> None:
        total, done = len(self._arms) * len(self._questions), 0

        for arm in self._arms:
            settings = self._settings[arm.name]
            renderer = ArmRenderer(arm, settings, system=self._system, seed=self._seed)
            asked = []
            for question in self._questions:
                prompt = renderer.render(question)
                key = answer_key(self._endpoint.payload(prompt.messages))
                asked.append(AskedPrompt(prompt, key))
                done += 1
                on_progress("ordering", done, total)
            self._asked[arm.name] = tuple(asked)

    def estimate(self, *, max_tokens: int) -> CostEstimate:
        tokens = {asked.key: asked.prompt.prompt_tokens for asked in self._all()}
        missing = [key for key in tokens if key not in self._answers]
        return CostEstimate(
            num_prompts=len(tokens),
            num_known=len(tokens) - len(missing),
            prompt_tokens=sum(tokens[key] for key in missing),
            max_completion_tokens=len(missing) * max_tokens,
        )

    def ask(self, *, concurrency: int, on_progress: StageProgress) -> None:
        """Ask for all missing answers; each one is kept."""
        wanted = {asked.key: asked.prompt.messages for asked in self._all()}
        report = partial(on_progress, "asking")
        asking = ask_all(
            self._endpoint, wanted, self._answers, concurrency=concurrency, on_answer=report
        )
        self.failures = asyncio.run(asking)

    def result(self, *, metric: str) -> OrderEvaluation:
        base = [one.key for one in self._asked[self._arms[0].name]]
        facts, scores = {}, {}
        for arm in self._arms:
            asked = self._asked[arm.name]
            tokens = sum(one.prompt.prompt_tokens for one in asked)
            cached = sum(one.prompt.predicted_cached_tokens for one in asked)
            changed = sum(one.key != key for one, key in zip(asked, base, strict=True))
            facts[arm.name] = (changed, tokens, cached / max(tokens, 1))
            scores[arm.name] = {
                question.id: found
                for question, one in zip(self._questions, asked, strict=True)
                if (found := self._score(question, one.key)) is not None
            }
        return compare(
            self._arms,
            scores,
            groups={
                q.id: ("alone", q.id) if q.conversation is None else ("in", q.conversation)
                for q in self._questions
            },
            facts=facts,
            metrics=list(METRICS),
            metric=metric,
            seed=self._seed,
        )

    def _all(self) -> list[AskedPrompt]:
        return [prompt for asked in self._asked.values() for prompt in asked]

    def _score(self, question: EvalQuestion, key: str) -> dict[str, float] | None:
        if key not in self._answers:
            return None
        text = self._answers[key]
        return {name: metric(text, question.answers) for name, metric in METRICS.items()}
