"""Bound and clean the text of clients where it becomes a key, a label or a line of a log."""

import hashlib

_MAX_NAME = 256
_MAX_SHOWN = 512


def bounded_name(text: str) -> str:
    """Return a name that may be kept and shown: a short, printable one itself, others as a hash."""
    if len(text) <= _MAX_NAME and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def printable(text: str) -> str:
    """Return a text for a log line: one line, without control characters, cut if it is long."""
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    if shown.isprintable():
        return shown
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return "".join(escaped)
