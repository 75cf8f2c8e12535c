"""Say of each request why it is not the continuation of the one before, for whoever sent it.

What is kept of a user's requests is compared with that user's only, and what is said of them holds
no text: a place, lengths, a cause. Users may share their credentials: who does not show that he
knows the earlier conversation is told the cause alone. Does not know HTTP.
"""

from typing import Any, NamedTuple

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.causes import MENDS, Cause
from ragboost.proxy.hosted.comparison import PrefixBreak, compare, rendered_break
from ragboost.proxy.hosted.conversations import LastPrompts, PromptPair
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.body import is_stored
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.util.bounded_map import BoundedMap

_MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_TEAMS = 64


class CacheBreak(NamedTuple):
    """Why a request finds less in the prefix cache than the one before it left there."""

    cause: Cause
    path: str  # of the part of the prompt in which it differs
    tokens_in: int  # of the prompt before the difference, estimated
    lost_tokens: int  # behind it, which would have been cached, estimated
    is_proven: bool = True  # its sender knows the conversation, and may read where that differs

    @classmethod
    def of(cls, found: PrefixBreak | None, *, tokens_per_byte: float) -> "CacheBreak | None":
        """Return what is said of a difference; None if nothing is lost."""
        lost = int(found.lost_bytes * tokens_per_byte) if found is not None else 0
        if found is None or lost <= 0:
            return None
        tokens_in = int(found.equal_bytes * tokens_per_byte)
        return cls(found.cause, found.path, tokens_in, lost, found.is_proven)

    @property
    def mend(self) -> str:
        """One line on what helps."""
        return MENDS[self.cause]

    @property
    def header(self) -> bytes:
        """Value of a header, ASCII: place, cause, what is lost and what helps."""
        said = self.sentence if self.is_proven else f"diverged: {self.cause}; {self.mend}"
        return said.encode("ascii", "replace")

    @property
    def sentence(self) -> str:
        """All of it, for operators."""
        where = f"diverged at {self.path}, {self.tokens_in} tokens in: {self.cause}"
        return f"{where}; {self.lost_tokens} tokens lost; {self.mend}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a receipt."""
        fields: dict[str, Any] = {"cause": str(self.cause), "mend": self.mend}
        if not self.is_proven:
            return fields
        fields |= {
            "path": self.path,
            "tokens_in": self.tokens_in,
            "lost_tokens": self.lost_tokens,
        }
        return fields


def find_break(
    pair: PromptPair, *, kind: EngineKind = "", template: ChatTemplate | None = None
) -> PrefixBreak | None:
    """Return the first difference of two requests; may take a few milliseconds, if both are long.

    Args:
        template: of the model, where it is at hand.
    """
    if pair.is_continued:
        return None
    old, new = pair.before.parts(kind), pair.new.parts(kind)
    found = compare(old, new)
    if found is not None and template is not None:
        found = rendered_break(found, old, new, template)
    return found and found._replace(is_proven=pair.new.proves_to_continue(pair.before))


class PrefixWatch:
    """The last requests of all users, bounded for each team.

    Args:
        max_bytes: of all teams.
        num_teams: that share them.
        template: of the model, where it is at hand.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 64 << 20,
        num_teams: int = 1,
        template: ChatTemplate | None = None,
    ) -> None:
        self.template = template
        self._max_size = max_bytes // min(max(num_teams, 1), MAX_TEAMS)
        self._teams: BoundedMap[str, LastPrompts] = BoundedMap(max_entries=MAX_TEAMS)

    def observe(self, request: ParsedRequest, *, kind: EngineKind = "") -> PromptPair | None:
        """Add a request; return it with the one before, unless it continues that.

        `kind` is the backend's.
        """
        body, team = request.body, request.tenant_key.team
        if len(body.raw) > min(_MAX_BODY_BYTES, self._max_size) or is_stored(body.fields):
            return None
        last = self._teams.get(team)
        if last is None:
            last = LastPrompts(max_size=self._max_size)
            self._teams.put(team, last)
        name = (request.session or "").partition("/")[2]  # behind what depends on the model
        pair = last.replace(body, owner=request.owner, name=name, kind=kind)
        return None if pair is None or pair.is_continued else pair
