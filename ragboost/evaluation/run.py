"""Run an evaluation: render the arms, ask for the answers, have them judged, compare."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ragboost.config import Settings
from ragboost.evaluation.answers import AnswerFile, answer_key, ask_all
from ragboost.evaluation.arms import ArmPrompt, ArmRenderer, EvalArm, Messages
from ragboost.evaluation.endpoint import ChatEndpoint
from ragboost.evaluation.loading import EvalQuestion
from ragboost.evaluation.results import OrderEvaluation, compare
from ragboost.util.text_scores import contains, exact_match, word_f1

JUDGE = "judge"
METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "em": exact_match,
    "f1": word_f1,
    "contains": contains,
}


def judge_messages(question: EvalQuestion, answer: str) -> Messages:
    right = " or ".join(question.answers)
    return (
        (
            "system",
            "You compare an answer with the correct one. Reply with one word: yes if both say the "
            "same to the question, else no.",
        ),
        ("user", f"Question: {question.text}\nCorrect answer: {right}\nAnswer: {answer}"),
    )


def verdict(reply: str) -> float | None:
    """Return 1 for a judge's yes, 0 for no, None for anything else."""
    word = re.search(r"\b(yes|no)\b", reply.lower())
    return None if word is None else float(word.group() == "yes")


StageProgress = Callable[[str, int, int], None]
_JUDGE_FRAME_TOKENS = 60
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Requests and tokens that a run takes, told before its first request."""

    num_prompts: int  # distinct prompts of all arms
    num_known: int  # those answered by earlier runs
    prompt_tokens: int  # estimated, of the others
    max_completion_tokens: int  # at most, of the others
    num_verdicts: int = 0  # requests to the judge, at most
    judge_tokens: int = 0  # estimated tokens of these

    @property
    def num_missing(self) -> int:
        return self.num_prompts - self.num_known

    def sentence(self) -> str:
        earlier = f", {self.num_known:,} answered before" if self.num_known else ""
        text = (
            f"{self.num_missing:,} requests of {self.num_prompts:,} distinct prompts{earlier}: "
            f"about {self.prompt_tokens:,} prompt tokens, at most {self.max_completion_tokens:,} "
            "new ones"
        )
        if self.num_verdicts:
            text += (
                f"; up to {self.num_verdicts:,} requests to the judge, about "
                f"{self.judge_tokens:,} tokens"
            )
        return text


class AskedPrompt(NamedTuple):
    prompt: ArmPrompt
    key: str


class OrderRun:
    """One evaluation of questions over arms, judged if there is a `judge`."""

    def __init__(
        self,
        questions: Sequence[EvalQuestion],
        arms: Sequence[EvalArm],
        settings: Mapping[str, Settings],
        *,
        endpoint: ChatEndpoint,
        answers: AnswerFile,
        judge: ChatEndpoint | None = None,
        system: str = "",
        seed: int = 0,
    ) -> None:
        self._questions = questions
        self._arms = arms
        self._settings = settings
        self._endpoint = endpoint
        self._judge = judge
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
        verdicts = judge_tokens = 0
        if self._judge is not None:
            verdicts = len(tokens)
            texts = sum(len(q.text) + max(map(len, q.answers)) for q in self._questions)
            question_tokens = texts / len(self._questions) / _BYTES_PER_TOKEN
            judge_tokens = round(verdicts * (question_tokens + max_tokens + _JUDGE_FRAME_TOKENS))
        return CostEstimate(
            num_prompts=len(tokens),
            num_known=len(tokens) - len(missing),
            prompt_tokens=sum(tokens[key] for key in missing),
            max_completion_tokens=len(missing) * max_tokens,
            num_verdicts=verdicts,
            judge_tokens=judge_tokens,
        )

    def ask(self, *, concurrency: int, on_progress: StageProgress) -> None:
        """Ask for all missing answers, then for the judge's verdicts; each one is kept."""

        def ask(endpoint: ChatEndpoint, wanted: Mapping[str, Messages], stage: str) -> None:
            report = partial(on_progress, stage)
            asking = ask_all(
                endpoint, wanted, self._answers, concurrency=concurrency, on_answer=report
            )
            self.failures |= asyncio.run(asking)

        wanted = {asked.key: asked.prompt.messages for asked in self._all()}
        ask(self._endpoint, wanted, "asking")
        if self._judge is not None:
            ask(self._judge, self._verdicts_wanted(), "judging")

    def result(self, *, metric: str) -> OrderEvaluation:
        metrics = [*METRICS, *([JUDGE] if self._judge is not None else [])]
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
            metrics=metrics,
            metric=metric,
            seed=self._seed,
        )

    def _all(self) -> list[AskedPrompt]:
        return [prompt for asked in self._asked.values() for prompt in asked]

    def _verdicts_wanted(self) -> dict[str, Messages]:
        assert self._judge is not None, "no judge"
        wanted = {}
        for asked in self._asked.values():
            for question, one in zip(self._questions, asked, strict=True):
                if one.key in self._answers:
                    messages = judge_messages(question, self._answers[one.key])
                    wanted[answer_key(self._judge.payload(messages))] = messages
        return wanted

    def _score(self, question: EvalQuestion, key: str) -> dict[str, float] | None:
        if key not in self._answers:
            return None
        text = self._answers[key]
        scores = {name: metric(text, question.answers) for name, metric in METRICS.items()}
        if self._judge is not None:
            asked = answer_key(self._judge.payload(judge_messages(question, text)))
            found = verdict(self._answers[asked]) if asked in self._answers else None
            if found is None:
                return None
            scores[JUDGE] = found
        return scores
