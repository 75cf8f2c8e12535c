"""Say in the log what was seen of requests' documents and what became of them, once per shape.

A shape is a reason and a kind of frame: both are few, so that the log and its memory stay small.
"""

import logging

from ragboost.requests.formats.detection import ADVICE, FOUND, Detection
from ragboost.requests.headers import printable
from ragboost.requests.parsed_request import Bypass

logger = logging.getLogger(__name__)

_MIN_BYTES = 2_000  # of a body in which somebody may expect documents


def log_detection(
    detection: Detection, bypass: Bypass | None, *, num_bytes: int, logged: set[tuple[str, str]]
) -> None:
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
