"""What requests in flight are about to evict: the oldest tokens (RAGBoost section 4.1, LRU).

An engine evicts when a request's turn comes, not when it is sent. Knows ticks and token counts.
Does not know nodes, engines or requests.
"""

import math
from collections import OrderedDict
from collections.abc import Set

from ragboost.errors import ContextIndexError


class EvictionForecast:
    """What of a prefix cache will be there when a request sent now gets its turn.

    One object serves all context indexes of a backend; see `engine_hooks.in_flight`.

    Attributes:
        kept_share: of all tokens; the rest, last used longest ago, is as good as evicted.
        epoch: number of the batch in which a request sent now will be computed.
        room_tokens: new tokens that this batch has room for; a request with more is in the next.
        is_batched: requests of one batch do not find what the others of it compute, and a node is
            evicted whole (a radix tree).
    """

    __slots__ = ("epoch", "is_batched", "kept_share", "room_tokens")

    def __init__(self) -> None:
        self.kept_share = 1.0
        self.epoch = 0
        self.room_tokens = math.inf
        self.is_batched = False

    def expect(
        self, kept_share: float, epoch: int, room_tokens: float, *, is_batched: bool
    ) -> None:
        """Set all attributes."""
        self.kept_share, self.epoch, self.room_tokens = kept_share, epoch, room_tokens
        self.is_batched = is_batched

    def takes(self, new_tokens: int) -> bool:
        """Whether the batch has room for a request; if not, the next one is begun for it."""
        if not self.is_batched or new_tokens < self.room_tokens:
            return True
        self.epoch += 1
        self.room_tokens = math.inf
        return False

    @property
    def blind_from(self) -> int | None:
        """Nodes of this epoch on are not found; None: all nodes are found."""
        return self.epoch if self.is_batched else None


class Ages:
    """Tokens by the tick of their last use, and a mark between those that go and those that stay.

    The tokens of one tick lie on one way from the root down, so that of the oldest tick that stays
    the first tokens of that way are the last to go.

    Attributes:
        gone: tokens last used at this tick or before are about to be evicted.
        cut: tokens of the tick after it that go, too, from the end.
    """

    def __init__(self) -> None:
        self.gone = self.cut = 0
        self._tokens: OrderedDict[int, int] = OrderedDict()  # in the order of ticks
        self._num_gone = 0

    def add(self, tick: int, num_tokens: int) -> None:
        """Tokens last used at `tick` came, or went if negative."""
        left = self._tokens.get(tick, 0) + num_tokens
        if left:
            self._tokens[tick] = left
        else:
            self._tokens.pop(tick, None)
        if tick <= self.gone:
            self._num_gone += num_tokens

    def mark(self, num_tokens: int) -> None:
        """So many of the oldest tokens are about to go. Costs the ticks between the two marks."""
        if num_tokens <= 0 or not self._tokens:
            self.gone, self._num_gone, self.cut = next(iter(self._tokens), 1) - 1, 0, 0
            return
        while self._num_gone > num_tokens:
            self._num_gone -= self._tokens.get(self.gone, 0)
            self.gone -= 1
        newest = next(reversed(self._tokens))
        while self.gone < newest:
            more = self._tokens.get(self.gone + 1, 0)
            if self._num_gone + more > num_tokens:
                break
            self.gone += 1
            self._num_gone += more
        self.cut = min(num_tokens - self._num_gone, self._tokens.get(self.gone + 1, 0))

    def kept(self, tick: int) -> int:
        """Tokens of one tick that stay."""
        if tick <= self.gone:
            return 0
        return self._tokens.get(tick, 0) - (self.cut if tick == self.gone + 1 else 0)

    def check(self, ticks: Set[int], *, num_tokens: int) -> None:
        """Compare with what the nodes say.

        Raises:
            ContextIndexError: the message gives the numbers.
        """
        below = sum(count for tick, count in self._tokens.items() if tick <= self.gone)
        total, counted = sum(self._tokens.values()), list(self._tokens)
        if (set(counted), total, below) != (ticks, num_tokens, self._num_gone):
            raise ContextIndexError(
                f"{total} tokens in {len(counted)} ticks, {below} of them going; the nodes have "
                f"{num_tokens} in {len(ticks)}, recorded {self._num_gone}"
            )
        if counted != sorted(counted):
            raise ContextIndexError(f"ticks are out of order: {counted[:10]}")
