"""Log one line of JSON per request, without documents, query strings, session ids or keys.

The lines are messages of the logger `ragboost.access`, complete without a formatter.
"""

import logging
import time
from datetime import UTC, datetime

import msgspec

from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.requests.headers import printable

logger = logging.getLogger("ragboost.access")


def log_access(request: ClientExchange) -> None:
    now = time.perf_counter()
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": printable(request.request_id),
        "method": request.method,
        "path": request.shown_path,
        "endpoint": request.endpoint,
        "model": request.model,
        "status": request.status,
        "outcome": request.outcome,
        "duration_ms": round((now - request.started) * 1000, 3),
    }
    if request.first_byte is not None:
        line["first_byte_ms"] = round((request.first_byte - request.started) * 1000, 3)
    logger.info("%s", msgspec.json.encode({**line, **request.notes}, enc_hook=str).decode())
