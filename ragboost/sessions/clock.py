"""A clock in seconds since 1970 that keeps its pace when the system's clock is set."""

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], float]:
    """Return a clock that starts at the system's time and is monotonic from then on."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
