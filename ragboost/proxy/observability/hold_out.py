"""Hold out a share of the conversations, and estimate from them what boosting saves.

Keeps sums for a few random groups of conversations, so that memory does not grow.
"""

import hashlib
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ragboost.proxy.records import Answer, SentRequest
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.body import num_instructions

_GROUPS = 32
_MIN_GROUPS = 16  # of conversations in each arm; the interval of fewer means little
_T = 2.04  # quantile of Student's t for 31 degrees of freedom, 95 % on both sides
_ARMS = ("held_out", "boosted")


class SavedShare(NamedTuple):
    """Share of a prompt's computed tokens that boosting saves, with its interval at 95 %."""

    mean: float
    low: float
    high: float


class HoldOut:
    """Sums of computed prompt tokens by arm and group; an observer of completions."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, len(_ARMS), _GROUPS))  # requests, computed tokens

    async def done(self, parsed: ParsedRequest, sent: SentRequest, answer: Answer) -> None:
        """Add a completion that is in an arm and has reported its usage."""
        usage = answer.usage
        if parsed.arm is None or usage is None or answer.outcome != "ok":
            return
        group = conversation_digest(parsed)[-1] % _GROUPS
        computed = usage.prompt_tokens - (usage.cached_tokens or 0) - (usage.reused_tokens or 0)
        self._sums[:, _ARMS.index(parsed.arm), group] += 1, max(0, computed)

    def saved_share(self) -> SavedShare | None:
        """Return the estimate, its interval by the jackknife over groups; None with too few."""
        if (np.count_nonzero(self._sums[0], axis=1) < _MIN_GROUPS).any():
            return None
        total = self._sums.sum(axis=2, keepdims=True)
        mean, without = _saved(total)[0], _saved(total - self._sums)
        spread = (_GROUPS - 1) / _GROUPS * ((without - without.mean()) ** 2).sum()
        error = _T * math.sqrt(spread)
        return SavedShare(float(mean), float(mean - error), float(mean + error))


def with_arm(request: ParsedRequest, *, share: float) -> ParsedRequest:
    """Return a request in its arm, unless there are no documents to boost, or no hold-out.

    One that is held out is not planned with others either. All requests of a conversation have one
    arm, in every process: it follows from the conversation's name, else from the tenant and the
    messages up to the first that is no instruction.

    Args:
        share: of the conversations that are boosted, from 0 to 1.
    """
    if share >= 1 or request.found is None or not request.is_boost_wanted:
        return request
    is_boosted = int.from_bytes(conversation_digest(request)[:8], "big") < share * 2**64
    return replace(request, is_boost_wanted=is_boosted, arm="boosted" if is_boosted else "held_out")


def conversation_digest(request: ParsedRequest) -> bytes:
    """Return a digest that all requests of a conversation have, and hardly any other."""
    names = [request.session] if request.session is not None else request.tenant_key
    parts = [name.encode("utf-8", "surrogatepass") for name in names]
    if request.session is None:
        parts += _beginning(request)
    return hashlib.sha256(b"\0".join(parts)).digest()


def _beginning(request: ParsedRequest) -> list[bytes]:
    """Return the part of a body that every later turn of its conversation resends."""
    body = request.body
    messages = body.fields.get(body.list_name) or ()
    return body.message_digests[: num_instructions(messages) + 1] or [body.raw]


def _saved(sums: np.ndarray) -> np.ndarray:
    held_out, boosted = sums[1] / np.maximum(sums[0], 1)
    share: np.ndarray = 1 - boosted / np.maximum(held_out, 1e-9)
    return share
