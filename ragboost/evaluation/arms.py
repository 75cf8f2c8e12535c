"""The arms of an evaluation: settings of the product, and what is done to its contexts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ragboost.errors import RequestError

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
    EvalArm(
        "hints-before",
        {**_HINTED, "hints.position": "before_question", "hints.location_position": "with_hints"},
        advice='hints.position = "before_question"',
    ),
    EvalArm(
        "hints-after",
        {**_HINTED, "hints.position": "after_question", "hints.location_position": "with_hints"},
        advice='hints.position = "after_question"',
    ),
    EvalArm(
        "hints-in-place",
        {**_HINTED, "hints.location_position": "in_place"},
        advice='hints.location_position = "in_place"',
        in_conversations=True,
    ),
    *(_keep_last(count) for count in range(MAX_KEEP_LAST + 1)),
    EvalArm("shuffled", _PLAIN, shuffle="as_retrieved"),
    EvalArm("shuffled-hints", _HINTED, shuffle="as_moved"),
    EvalArm("reversed", _PLAIN, shuffle="reversed"),
    EvalArm(
        "dedup",
        {**_TURNS, "hints.location_position": "with_hints"},
        advice="ordering.enabled = false",
        in_conversations=True,
    ),
    EvalArm(
        "dedup-in-place",
        {**_TURNS, "hints.location_position": "in_place"},
        advice='ordering.enabled = false and hints.location_position = "in_place"',
        in_conversations=True,
    ),
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
