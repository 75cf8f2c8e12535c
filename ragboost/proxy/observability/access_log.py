"""One line of JSON per request, for log collectors. Holds no document, no query string and no key.

The lines go to the logger `ragboost.access`, as messages that need no further format.
"""

import logging
import time
from datetime import UTC, datetime

import msgspec

from ragboost.proxy.asgi.request_context import RequestContext

logger = logging.getLogger("ragboost.access")


def log_access(exchange: RequestContext) -> None:
    """Log a request that is over. What its endpoint noted about it follows the common fields."""
    now = time.perf_counter()
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.scope["path"],
        "endpoint": exchange.endpoint,
        "model": exchange.model,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "duration_ms": round((now - exchange.started) * 1000, 3),
    }
    if exchange.first_byte is not None:
        line["first_byte_ms"] = round((exchange.first_byte - exchange.started) * 1000, 3)
    data = msgspec.json.encode({**line, **exchange.notes}, enc_hook=str)
    logger.info("%s", data.decode("utf-8", "replace"))
