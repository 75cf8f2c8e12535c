"""Lines of the logs: of each request, and of what was seen of its documents.

None has documents, query strings, session ids or keys.
"""

import logging
import time
from datetime import UTC, datetime

import msgspec

from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.requests.formats.detection import ADVICE, FOUND, Detection
from ragboost.requests.headers import printable
from ragboost.requests.parsed_request import Bypass

logger = logging.getLogger(__name__)
_access = logging.getLogger("ragboost.access")

_MIN_BYTES = 2_000  # of a body in which somebody may expect documents


def log_access(request: ClientExchange) -> None:
    """Log a line of JSON, complete without a formatter."""
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
    _access.info("%s", msgspec.json.encode({**line, **request.notes}, enc_hook=str).decode())


def log_detection(
    detection: Detection, bypass: Bypass | None, *, num_bytes: int, logged: set[tuple[str, str]]
) -> None:
    """Say what was seen of a request's documents and what became of them, once per shape: a reason
    and a kind of frame are few, so that the log and its memory stay small."""
    reason, error = bypass or (FOUND, None)
    # An error while boosting is the same whatever the frame.
    shape = reason, detection.frame if reason == detection.name else ""
    if shape in logged:
        return
    level = logging.INFO
    if error is not None:
        level = logging.INFO if reason == "nothing_to_do" else logging.WARNING
        said = f"forwarding without boosting ({reason}, logged once): {printable(str(error))}"
    elif detection.name == FOUND:
        done = "boosted" if reason == FOUND else f"not boosted ({reason})"
        num, frame = detection.num_documents, detection.frame
        said = f"{num} documents found ({frame}), {done}; logged once"
    elif reason == "no_documents" and num_bytes >= _MIN_BYTES:
        said = f"no documents found in {num_bytes:,} bytes; logged once: {ADVICE[reason]}"
    else:
        return
    logged.add(shape)
    logger.log(level, "%s", said)
