"""The origin of a prompt's tokens: the one vocabulary of counts, metrics and `usage`."""

from typing import Any, NamedTuple

import msgspec


class TokenOrigins(NamedTuple):
    """The tokens of a prompt by the origin of their KV; they add up to the prompt."""

    exact: int = 0  # from the engine's prefix cache or a stored chunk, equal to an ordinary prefill
    reused: int = 0  # from a chunk that was computed in another context, as it is
    recomputed: int = 0  # from such a chunk, selected and computed again
    computed: int = 0  # not stored: computed as ever, the question among them


class PromptReport(NamedTuple):
    """Report of an engine on a prompt that mentions chunks."""

    origins: TokenOrigins
    reason: str | None = None  # why it reused none of them; None: it did, or found none to reuse

    @property
    def fields(self) -> dict[str, Any]:
        reason = {} if self.reason is None else {"reason": self.reason}
        return {**self.origins._asdict(), **reason}

    @classmethod
    def read(cls, fields: Any) -> "PromptReport | None":
        """Return a report that was sent as JSON; None if it has another shape."""
        try:
            counts = msgspec.convert([fields.get(n) for n in TokenOrigins._fields], tuple[int, ...])
            return cls(TokenOrigins(*counts), msgspec.convert(fields.get("reason"), str | None))
        except (msgspec.ValidationError, AttributeError):
            return None
