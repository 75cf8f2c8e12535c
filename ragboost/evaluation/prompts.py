"""Render the prompts of an arm with the product's own Booster, which sees all its questions in file
order, as in production. Earlier turns carry the right answer as the assistant's message, so that
prompts do not depend on the model."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ragboost.booster import Booster
from ragboost.booster.compose import behind
from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.dedup import unique_documents
from ragboost.evaluation.arms import EvalArm
from ragboost.evaluation.questions import EvalQuestion
from ragboost.ordering import Order

Messages = tuple[tuple[str, str], ...]
"""Pairs of role and text."""


@dataclass(frozen=True, slots=True)
class ArmPrompt:
    messages: Messages  # the whole conversation
    prompt_tokens: int  # their estimated length
    predicted_cached_tokens: int  # as the Booster predicts


class ArmRenderer:
    """Renders the questions of one arm, in file order; an empty `system` is no message."""

    def __init__(self, arm: EvalArm, settings: Settings, *, system: str, seed: int) -> None:
        self._arm = arm
        self._booster = Booster(settings)
        self._prompt_prefix = system
        self._system: Messages = (("system", system),) if system else ()
        self._rng = np.random.default_rng(seed)
        self._history: defaultdict[str, Messages] = defaultdict(tuple)

    def render(self, question: EvalQuestion) -> ArmPrompt:
        context = self._boost(question)
        if self._arm.drops_locations:
            kept = tuple(hint for hint in context.hints if hint.kind != "location")
            context = replace(context, hints=kept)
        earlier: Messages = ()
        asked = ("user", context.render())
        if question.conversation is not None:
            earlier = self._history[question.conversation]
            answer = ("assistant", question.answers[0])
            self._history[question.conversation] = (*earlier, asked, answer)
        messages = (*self._system, *earlier, asked)
        count = self._booster.tokens.count
        tokens = sum(count(text) for _, text in messages)
        cached = min(context.predicted_cached_tokens, tokens)
        return ArmPrompt(messages, tokens, cached)

    def _boost(self, question: EvalQuestion) -> Context:
        documents, planned = list(question.documents), None
        if self._arm.shuffle == "as_retrieved":
            documents = [documents[i] for i in self._rng.permutation(len(documents))]
        elif self._arm.shuffle == "reversed":
            documents.reverse()
        elif self._arm.shuffle == "as_moved":
            planned = self._moved(question)
        return self._booster.boost(
            question.text,
            documents,
            session=question.conversation,
            prompt_prefix=self._prompt_prefix,
            planned=planned,
        )

    def _moved(self, question: EvalQuestion) -> Order:
        unique = unique_documents(question.documents)
        permutation = tuple(int(i) for i in self._rng.permutation(len(unique)))
        elements = behind(self._prompt_prefix, [unique[i].key for i in permutation])
        tokens = self._booster.tokens.count_documents([unique[i] for i in permutation])
        return Order(permutation, elements, tuple(tokens), 0)
