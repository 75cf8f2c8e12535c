"""Clean the text of clients where it becomes a line of a log."""

_MAX_SHOWN = 512


def printable(text: str) -> str:
    """Return a text for a log line: one line, without control characters, cut if it is long."""
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    if shown.isprintable():
        return shown
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return "".join(escaped)
