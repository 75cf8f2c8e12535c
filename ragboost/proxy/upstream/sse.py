"""Server-sent events as bytes: where one ends, and its data. Does not know what the data say."""

import re

EVENT_END = re.compile(rb"\r\n\r\n|\n\n")


def event_data(event: bytes) -> bytes:
    """The data of one event, its lines joined; empty where it has none."""
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
