"""All wires, and their union for bodies whose API is unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from ragboost.requests.wires.anthropic_messages import ANTHROPIC_MESSAGES
from ragboost.requests.wires.openai_chat import OPENAI_CHAT
from ragboost.requests.wires.openai_completions import OPENAI_COMPLETIONS
from ragboost.requests.wires.openai_responses import OPENAI_RESPONSES
from ragboost.requests.wires.wire import UsageFields, WireApi

WIRES = (OPENAI_CHAT, OPENAI_COMPLETIONS, ANTHROPIC_MESSAGES, OPENAI_RESPONSES)

T = TypeVar("T", WireApi, UsageFields)


def _union(kind: type[T], parts: Sequence[T]) -> T:
    """Return an object with the names of all parts, each once and in their order."""
    merged: dict[str, Any] = {}
    for fact in fields(kind):
        values = [getattr(part, fact.name) for part in parts]
        if isinstance(values[0], tuple):
            merged[fact.name] = tuple(dict.fromkeys(name for names in values for name in names))
        elif isinstance(values[0], Mapping):
            merged[fact.name] = {key: name for names in values for key, name in names.items()}
    return kind(**merged)


ANY = _union(WireApi, WIRES)
CONTENTS = {name: wire.content[0] for wire in WIRES for name in wire.messages}  # by messages
ADDITIVE_COUNTS = tuple(counts for counts in ANY.counts if counts.is_additive)
# Providers report the counts of one API in the shape of another.
ALL_COUNTS = _union(UsageFields, sorted(ANY.counts, key=lambda counts: counts.is_additive))
