"""Wait for an engine's events of a request without a clock: they follow its response."""

from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout


class Arrivals:
    """Says whether the events of the last request have arrived and are in the index."""

    def __init__(self, follower: CacheFollower, *, block_size: int) -> None:
        self._follower = follower
        self._block_size = block_size
        self._request_id: str | None = None  # of the last request, as events name it
        follower.on_layout.append(self._note)

    def are_complete(self, *, prompt_tokens: int, cached_tokens: int) -> bool:
        """All whole blocks of the last request are known; holds while no other is in flight."""
        whole = prompt_tokens // self._block_size * self._block_size
        if cached_tokens < whole and self._request_id is not None:  # else nothing is stored anew
            streams = self._follower.streams.values()
            if all((each.resident_tokens(self._request_id) or 0) < whole for each in streams):
                return False
        return self._follower.is_idle

    def _note(self, request_id: str | None, _layout: PromptLayout) -> None:
        self._request_id = request_id
