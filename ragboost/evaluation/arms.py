"""The arms of an evaluation, and their prompts: what the product's own Booster sends with an arm's
settings, which sees all its questions in file order, as in production. Earlier turns carry the
right answer as the assistant's message, so that prompts do not depend on the model."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ragboost.booster import Booster
from ragboost.booster.compose import behind
from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.dedup import unique_documents
from ragboost.errors import RequestError
from ragboost.evaluation.loading import EvalQuestion
from ragboost.ordering import Order

BASELINE = "retriever"
BOOSTED = "boosted"
DEFAULT_ARMS = {BASELINE, BOOSTED, "boosted-no-hints"}
EVERY_ARM = "all"
MAX_KEEP_LAST = 5
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EvalArm:
    name: str  # as in `--arm`
    # Settings by dotted path, on top of the user's own.
    changes: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    # The documents' order: as the Booster finds; random as if a Booster had moved them; or random
    # or reversed as if the retriever had returned it.
    shuffle: Literal["no", "as_moved", "as_retrieved", "reversed"] = "no"
    # Location hints are removed, so that nothing refers to dropped documents.
    drops_locations: bool = False
    advice: str = ""  # the setting that makes the product behave like this arm; empty if none does
    in_conversations: bool = False  # it differs from other arms in later turns only


_PLAIN = {"ordering.enabled": False, "hints.order": False, "hints.location": False}
_ORDERED = {"ordering.enabled": True, "dedup.enabled": True, "hints.location": True}
_HINTED = {**_ORDERED, "hints.order": True}
_TURNS = {"ordering.enabled": False, "dedup.enabled": True, "hints.location": True}


def _keep_last(count: int) -> EvalArm:
    return EvalArm(
        f"keep-last-{count}",
        {**_HINTED, "ordering.keep_last": count},
        advice=f"ordering.keep_last = {count}",
    )


ARMS = (
    EvalArm(BASELINE, _PLAIN, advice="ordering.enabled = false and hints.location = false"),
    EvalArm(BOOSTED),
    EvalArm("boosted-no-hints", {**_ORDERED, "hints.order": False}, drops_locations=True),
    *(_keep_last(count) for count in range(MAX_KEEP_LAST + 1)),
    EvalArm("shuffled", _PLAIN, shuffle="as_retrieved"),
    EvalArm("shuffled-hints", _HINTED, shuffle="as_moved"),
    EvalArm("reversed", _PLAIN, shuffle="reversed"),
    EvalArm("dedup", _TURNS, advice="ordering.enabled = false", in_conversations=True),
    EvalArm("dedup-no-hints", _TURNS, drops_locations=True, in_conversations=True),
)


def choose_arms(names: Iterable[str], *, has_conversations: bool) -> tuple[EvalArm, ...]:
    """Return arms by name, the baseline first; `all` are those that differ from each other."""
    requested = set(names) or DEFAULT_ARMS
    arms = {EVERY_ARM: None, **{arm.name: arm for arm in ARMS}}
    for name in requested:
        if name not in arms:
            raise RequestError(f"--arm must be one of {', '.join(arms)}, got {name!r}")
    if EVERY_ARM in requested:
        return tuple(arm for arm in ARMS if has_conversations or not arm.in_conversations)
    return tuple(arm for arm in ARMS if arm.name in requested | {BASELINE})


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
