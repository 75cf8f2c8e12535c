"""Say of each request why it is not the continuation of the one before, for whoever sent it.

What is kept of a user's requests is compared with that user's only, and what is said of them holds
no text: a place, lengths, a cause. Users may share their credentials: who does not show that he
knows the earlier conversation is told the cause alone. Does not know HTTP.
"""

from typing import Any, NamedTuple

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.causes import MENDS, Cause
from ragboost.proxy.hosted.comparison import PrefixBreak, compare, rendered_break
from ragboost.proxy.hosted.conversations import LastPrompts, Predecessor
from ragboost.proxy.hosted.seen_prompt import SeenPrompt
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.body import is_stored
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.util.bounded_map import BoundedMap

_MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_TEAMS = 64
# Between conversations, other differences are those of applications.
HEAD_CAUSES = frozenset(
    {
        Cause.TIME,
        Cause.RANDOM_ID,
        Cause.TOOL_ORDER,
        Cause.KEY_ORDER,
        Cause.TOOL_LISTS,
        Cause.ITEM_ORDER,
        Cause.WHITESPACE,
        Cause.VOLATILE,
    }
)


class CacheBreak(NamedTuple):
    """Why a request finds less in the prefix cache than the one before it left there."""

    cause: Cause
    path: str  # of the part of the prompt in which it differs
    tokens_in: int  # of the prompt before the difference, estimated
    lost_tokens: int  # behind it, which would have been cached, estimated
    is_proven: bool = True  # its sender knows the conversation, and may read where that differs

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


class PromptComparison(NamedTuple):
    """Two requests that are not alike: what differs is found when it is asked for."""

    before: Predecessor
    new: SeenPrompt
    kind: EngineKind = ""
    prompts: LastPrompts | None = None  # which learns what comes of it
    template: ChatTemplate | None = None  # of the model

    @property
    def num_bytes(self) -> int:
        """How much there is to do."""
        return len(self.new.raw) + len(self.before.prompt.raw)

    def run(self) -> PrefixBreak | None:
        """Return the first difference; may take a few milliseconds, if both are long."""
        before, is_continued, is_head_only, _ = self.before
        if is_continued:
            return None
        old, new = before.parts(self.kind), self.new.parts(self.kind)
        if is_head_only:
            found = compare(old.head(), new.head())
            return found and found._replace(is_proven=False)
        found = compare(old, new)
        if found is not None and self.template is not None:
            found = rendered_break(found, old, new, self.template)
        return found and found._replace(is_proven=self.new.proves_to_continue(before))


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
        self._template = template
        self._max_size = max_bytes // min(max(num_teams, 1), MAX_TEAMS)
        self._teams: BoundedMap[str, LastPrompts] = BoundedMap(max_entries=MAX_TEAMS)

    def observe(self, request: ParsedRequest, *, kind: EngineKind = "") -> PromptComparison | None:
        """Add a request; return the comparison with the one before, if they are not alike.

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
        # What varies before documents is found by others.
        has_head = request.found is None
        pair = last.replace(body, owner=request.owner, name=name, has_head=has_head, kind=kind)
        if pair is None:
            return None
        before, new = pair
        if before.is_continued:
            return None
        return PromptComparison(before, new, kind, last, self._template)

    def report(
        self,
        comparison: PromptComparison,
        found: PrefixBreak | None,
        *,
        tokens_per_byte: float,
    ) -> CacheBreak | None:
        """Return what is said of a difference; None if nothing is lost."""
        if (before := comparison.before).is_head_only:
            found = found if found is not None and found.cause in HEAD_CAUSES else None
            if comparison.prompts is not None:
                comparison.prompts.note_compared(before.key, is_fruitless=found is None)
        if found is None:
            return None
        lost = int(found.lost_bytes * tokens_per_byte)
        if lost <= 0:
            return None
        tokens_in = int(found.equal_bytes * tokens_per_byte)
        return CacheBreak(found.cause, found.path, tokens_in, lost, found.is_proven)
