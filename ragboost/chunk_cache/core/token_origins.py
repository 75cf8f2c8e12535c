"""The origin of a prompt's tokens: the one vocabulary of counts, metrics and `usage`."""

from typing import NamedTuple


class TokenOrigins(NamedTuple):
    """The tokens of a prompt by the origin of their KV; they add up to the prompt."""

    exact: int = 0  # from the engine's prefix cache or a stored chunk, equal to an ordinary prefill
    reused: int = 0  # from a chunk that was computed in another context, as it is
    recomputed: int = 0  # from such a chunk, selected and computed again
    computed: int = 0  # not stored: computed as ever, the question among them
