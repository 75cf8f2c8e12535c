"""Learn from usage that a backend has no prefix cache."""

import logging

logger = logging.getLogger(__name__)

_MIN_REQUESTS = 60
_MIN_TOKENS = 4096  # predicted of these together
_MIN_PREDICTED = 128  # of a request; the blocks of some engines have so many tokens


class CacheWitness:
    """Tell from a backend's usage if it has a prefix cache.

    Args:
        name: of the backend, for the log.
    """

    def __init__(self, name: str) -> None:
        self.is_absent = False
        self._name = name
        self._num_requests = self._num_tokens = 0  # with a prediction, since the last hit

    def note(self, *, predicted: int, cached: int) -> None:
        """Note a response that reports cached tokens, of which so many were predicted."""
        if cached > 0:
            if self.is_absent:
                logger.info("backend %s reports cached tokens again", self._name)
            self.is_absent = False
            self._num_requests = self._num_tokens = 0
        elif predicted >= _MIN_PREDICTED and not self.is_absent:
            self._num_requests += 1
            self._num_tokens += predicted
            if self._num_requests >= _MIN_REQUESTS and self._num_tokens >= _MIN_TOKENS:
                self.is_absent = True
                logger.warning(
                    "backend %s reported no cached token in %d responses, of which %d tokens were "
                    "predicted: its prefix cache is off, or its model has none; nothing is "
                    "predicted for it until it reports a hit (run `ragboost doctor`)",
                    self._name,
                    self._num_requests,
                    self._num_tokens,
                )
