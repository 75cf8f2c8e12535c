"""FakeEngine as a process that writes down every prompt before it answers.

    python -m benchmarks.scale.faults_engine PORT FILE

Started, killed and started again by `benchmarks.scale.faults`, which reads the file: one JSON text
per line.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes import FakeEngine
from tests.fakes.engine import Received

CAPACITY_TOKENS = 60_000


class RecordingEngine(FakeEngine):
    """FakeEngine with a file of prompts.

    Args:
        path: of that file.
    """

    def __init__(self, path: Path, *, port: int) -> None:
        super().__init__(port=port, events=True, capacity_tokens=CAPACITY_TOKENS)
        self._file = path.open("a", encoding="utf-8")

    def _record(self, request: web.Request, body: bytes, connection: int) -> Received:
        received: Any = super()._record(request, body, connection)
        if received.prompt:
            self._file.write(json.dumps(received.prompt) + "\n")
            self._file.flush()
        self.requests.clear()
        return received  # type: ignore[no-any-return]


if __name__ == "__main__":
    with RecordingEngine(Path(sys.argv[2]), port=int(sys.argv[1])):
        threading.Event().wait()
