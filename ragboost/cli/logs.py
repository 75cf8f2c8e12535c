"""Write the log to the terminal: lines of text or of JSON on standard error, the access log on
standard output.

Only commands set handlers up; the packages know `logging.getLogger` alone.
"""

import json
import logging
import multiprocessing
import sys
from datetime import UTC, datetime
from pathlib import Path

from ragboost.config import LogSettings

logger = logging.getLogger(__name__)


class _TextLines(logging.Formatter):
    """Lines that begin with the time in UTC, as the access log has it."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _JsonLines(_TextLines):
    """One JSON object per event; a traceback is a string in it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "process": record.processName,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_to_terminal(settings: LogSettings) -> None:
    """Write the log to standard error and the access log to standard output, in this process.

    A worker's lines have its name; each line is written at once.
    """
    is_worker = multiprocessing.parent_process() is not None
    where = "%(levelname)s %(processName)s" if is_worker else "%(levelname)s"
    lines = _JsonLines if settings.format == "json" else _TextLines
    handler = logging.StreamHandler()
    handler.setFormatter(lines(f"%(asctime)s {where} %(name)s: %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    access = logging.getLogger("ragboost.access")
    access.setLevel(logging.INFO)  # it is switched on and off by `proxy.access_log` alone
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False


def log_settings_file(path: Path | None) -> None:
    """Say which file the settings are from."""
    logger.info("settings from %s", path or "flags and environment: no ragboost.toml here")
