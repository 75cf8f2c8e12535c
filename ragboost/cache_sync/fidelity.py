"""Compare predicted with reported cached tokens, request by request."""

import logging
from collections import deque
from typing import NamedTuple

logger = logging.getLogger(__name__)

_WARN_BELOW = 0.9
_RECOVERED = 0.92  # higher, so that figures about the limit are not warned of again and again


class Fidelity(NamedTuple):
    """Predicted against reported cached tokens over the last requests; 1.0 is perfect."""

    num_requests: int  # requests in the window
    precision: float  # share of the tokens predicted as cached that were cached
    recall: float  # share of the cached tokens that were predicted
    predicted_over_reported: float | None  # ratio of the sums; None if none were reported as cached


class FidelityTracker:
    """Precision and recall over a window, with a warning, once until they recover."""

    def __init__(self, *, window: int = 512, min_requests: int = 50) -> None:
        self.min_requests = min_requests
        self.is_low = False  # precision or recall fell below `_WARN_BELOW`
        self._window: deque[tuple[int, int]] = deque(maxlen=window)
        self._predicted = self._reported = self._both = 0

    def record(self, *, predicted: int, reported: int, prompt_tokens: int) -> float:
        """Add one request and return its error, (predicted - reported) / prompt tokens."""
        predicted = min(predicted, prompt_tokens)
        if len(self._window) == self._window.maxlen:
            self._add(*self._window[0], sign=-1)
        self._window.append((predicted, reported))
        self._add(predicted, reported, sign=1)
        self._warn()
        return (predicted - reported) / max(prompt_tokens, 1)

    def read(self) -> Fidelity:
        return Fidelity(
            num_requests=len(self._window),
            precision=self._both / self._predicted if self._predicted else 1.0,
            recall=self._both / self._reported if self._reported else 1.0,
            predicted_over_reported=self._predicted / self._reported if self._reported else None,
        )

    def _add(self, predicted: int, reported: int, *, sign: int) -> None:
        self._predicted += sign * predicted
        self._reported += sign * reported
        self._both += sign * min(predicted, reported)

    def _warn(self) -> None:
        if len(self._window) < self.min_requests:
            return
        figures = self.read()
        limit = _RECOVERED if self.is_low else _WARN_BELOW
        is_low = min(figures.precision, figures.recall) < limit
        if is_low and not self.is_low:
            logger.warning(
                "predicted cached tokens no longer match what the backend reports: precision %.3f, "
                "recall %.3f over %d requests; see /ready for the state of the KV event streams, "
                "and run `ragboost doctor`",
                figures.precision,
                figures.recall,
                figures.num_requests,
            )
        elif self.is_low and not is_low:
            logger.info("predicted cached tokens match the backend's reports again")
        self.is_low = is_low
